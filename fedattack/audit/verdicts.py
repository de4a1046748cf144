"""What may be said of a finding."""

LEAK = "leak"
NO_EVIDENCE = "no evidence"
TOO_FEW = "too few to tell"
CANNOT_TELL = "cannot be told"
NOT_APPLICABLE = "not applicable"
VERDICTS = (LEAK, NO_EVIDENCE, TOO_FEW, CANNOT_TELL, NOT_APPLICABLE)
