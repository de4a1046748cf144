"""The words that a report uses, in a sentence each."""

GLOSSARY = {
    "Example": "One row of data with its label.",
    "Client, server": "A client trains on data that it keeps. The server averages what clients send.",
    "Round": "The server sends a model, clients train it and reply, the server averages.",
    "Update": "What a client sends: its model, its gradient, or its predictions.",
    "Target": "An example, a client or a column that the attack is asked about.",
    "Counterpart": "An example that nobody trained on, and that is like a target: of the same label, or also of the "
    "same client.",
    "Site": "What the examples of one client have in common, such as a scanner or a way of writing.",
    "Auxiliary examples": "Examples that the attacker has, and that no client trains on.",
    "Truth": "Who holds which example. The audit knows it; attacks never see it.",
    "Judge": "The part of the audit that holds what an attack says against the truth.",
    "Run, seed": "One repetition of the whole training, with its own random draws.",
    "Guessing (chance)": "The success of a guess that knows nothing about this run.",
    "Baseline": "What somebody reaches without this attack, such as by always naming the largest client.",
    "Null run": "The same attack where there is nothing to find, such as examples that nobody holds. What it finds "
    "there is no leak.",
    "Interval": "Where the number lies in runs like these, in 95 of 100 audits. With one run: in that run, with other "
    "targets of the same kind.",
    "p": "How likely such a high number is by accident if there is nothing to find.",
    "Leak shown": "The number is above guessing and every trivial baseline, and is unlikely to be an accident.",
    "Not shown": "No leak could be shown here. Another attack may find more.",
    "Too few to tell": "No result could have shown a leak, because its targets or clients can be exchanged in too few "
    "ways.",
    "Cannot be told": "The attack cannot read what most clients send, missed even a planted leak, or is far below "
    "guessing.",
    "Positive control": "The same attack where a leak is planted: clients are trained further on their own targets.",
    "Headline": "The number that was chosen before the run as the one that counts.",
    "Selected after the fact": "A number that was chosen by looking at the results. Its interval accounts for that.",
    "Secure aggregation": "The server sees the sum of all updates, but no single one.",
    "ε (differential privacy)": "How much one example, or one client, can change what is sent. Small is private.",
}
"""By word, what it means."""
