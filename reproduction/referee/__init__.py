"""The referee: every method is tuned with the same number of trials, and then judged beside a fixed clip on data that had no part in it."""
