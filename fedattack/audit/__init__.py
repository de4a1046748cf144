"""Hold what attacks say against the truth: measures, intervals, tests, findings."""
