"""What a server may want to know of its clients: one folder a question.

A folder holds the attack, what judges it, how its findings are shown, and the words for all of it. What all attacks
share is in :mod:`fedattack.attacks`.
"""
