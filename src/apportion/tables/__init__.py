"""Tables: a CSV or Parquet file, or a data frame, encoded by a schema that is declared and never read from the private records.

schema = ap.tables.Schema.read("patients.toml")
inputs, targets = ap.tables.records("patients.csv", schema, target="outcome")
"""

from apportion.tables.encoding import EncodedTable, Encoding, records
from apportion.tables.schema import Column, Schema

__all__ = ["Column", "EncodedTable", "Encoding", "Schema", "records"]
