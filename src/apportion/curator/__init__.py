"""The trust boundary: the only room that reads private records. Everything it hands out went through a mechanism."""
