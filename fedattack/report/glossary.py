"""The words that a report uses, in a sentence each."""

GLOSSARY = {
    "Example": "One row of data with its label.",
    "Client, server": "A client trains on data that it keeps. The server averages what clients send.",
    "Round": "The server sends a model, clients train it and reply, the server averages.",
    "Update": "What a client sends: its model, its gradient, or its predictions.",
    "Target": "An example, a client or a column that the attack is asked about.",
    "Run, seed": "One repetition of the whole training, with its own random draws.",
    "Guessing (chance)": "What somebody reaches who knows nothing of this run.",
    "Null run": "The same attack where there is nothing to find, such as examples that nobody holds. What it finds "
    "there is no leak.",
    "Interval": "Where the number lies in runs like these, in 95 of 100 audits. With one run: in that run, with other "
    "targets of the same kind.",
    "p": "How likely so high a number is by accident, if there is nothing to find.",
    "Leak shown": "The number is above guessing and above all that is trivial, and hardly by accident.",
    "Not shown": "That could not be shown here. Another attack may find more.",
    "Too few to tell": "No result could have shown a leak, because there are too few targets or clients.",
    "Cannot be told": "What most clients send is not understood, the attack saw not even a planted leak, or it is far "
    "below guessing.",
    "Positive control": "The same attack where a leak is planted: clients are trained further on their own targets.",
    "Headline": "The number that was chosen before the run as the one that counts.",
    "Selected after the fact": "A number that was chosen by looking at the results. Its interval pays for that.",
    "Secure aggregation": "The server sees the sum of all updates and no single one.",
    "ε (differential privacy)": "How much one example, or one client, can change what is sent. Small is private.",
}
"""By word, what it means."""
