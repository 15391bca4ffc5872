"""From events to ε: what a sequence of requests costs. Imports no torch and can be used alone."""
