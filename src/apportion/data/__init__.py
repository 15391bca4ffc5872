"""The data room: read known data sets, and folders of images, into tensors.

    from apportion import data
    digits = data.load("digits")            # needs no files
    mnist = data.load("mnist")              # after `apportion data fetch mnist`
    mine = data.load("folder:my/pictures")  # train/<class>/*.png and test/<class>/*.png

Nothing here computes a statistic of the private records: scalings, alphabets, vocabularies, categories and the number of
records are constants, so data sets that differ in one record give the same encoding of all the others.

Importing this package does not import torch; loading does.
"""

from apportion.data.entry import DataSet
from apportion.data.registry import KNOWN, load, names

__all__ = ["KNOWN", "DataSet", "load", "names"]
