"""Is a privacy claim true? What is declared, configured, seen in a record, and measured by a test of the mechanism."""

from fedattack.claims.accounting import Configured, compute_epsilon
from fedattack.claims.claim import Claim, make_claim, read_claim
from fedattack.claims.reading import claim_of
from fedattack.privacy import Epsilon

__all__ = ["Claim", "Configured", "Epsilon", "claim_of", "compute_epsilon", "make_claim", "read_claim"]
