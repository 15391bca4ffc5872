"""The command line: thin. It parses, calls the library and prints."""
