"""Put tokens together to sequences whose inputs of the second attention layer lie in the span of its gradient."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tokens = tuple[int, ...]

Measure = Callable[[Tensor], Tensor]
"""Takes sequences (n, tokens) and returns how far each of their inputs is from the span, (n, tokens)."""

# Sequences that are measured together.
_AT_ONCE = 4096

# Beginnings that are gone on with.
_MOST_BEGINNINGS = 1024

# By how much more than the worst input that is surely right another right one may be off.
_SLACK = 2.0

# By how much a sequence must be nearer to the span than any with one other token.
_SHARPER = 2.0

# Random starts of one search, and rounds in which each token is changed.
_STARTS, _ROUNDS = 8, 20

# In vain searched for sequences whose tokens are all explained already.
_IN_VAIN = 4


@dataclass(frozen=True)
class Found:
    """A sequence, and how far its inputs are from the span on average."""

    tokens: Tokens
    distance: float


@dataclass(frozen=True)
class Puzzle:
    """What sequences are made of.

    Attributes
    ----------
    allowed
        At each place the tokens that are there, by the first layer.
    measure
        Measures against the span of the second layer.
    limit
        How far an input may be from it.
    noise
        How far inputs of the first layer were that are within its span.
    by_place
        Whether the first layer tells places apart: then each token of ``allowed`` is in a sequence at its place.
    most
        How many sequences there are at most; ``None`` if that is not known.
    """

    allowed: Sequence[Tensor]
    measure: Measure
    limit: float
    noise: float
    by_place: bool
    most: int | None

    def measure_all(self, sequences: Tensor) -> Tensor:
        """Measure any number of sequences."""
        if not len(sequences):
            return torch.zeros(sequences.shape, dtype=torch.float64)
        return torch.cat([self.measure(part) for part in sequences.split(_AT_ONCE)])

    def choose_best(self, found: Sequence[Found]) -> list[Found]:
        """Return the sequences, the nearest first, and no more than there are."""
        return sorted(found, key=lambda each: each.distance)[: self.most]


def build_forward(puzzle: Puzzle) -> list[Found]:
    """Find the sequences of a model that looks back only, token by token (DAGER for decoders)."""
    finished: list[Found] = []
    beginnings = torch.zeros((1, 0), dtype=torch.int64)
    distances = torch.zeros((1, 0), dtype=torch.float64)
    for allowed in puzzle.allowed:
        if not len(beginnings) or not len(allowed):
            break
        count = len(allowed)
        longer = torch.cat([beginnings.repeat_interleave(count, 0), allowed.repeat(len(beginnings))[:, None]], dim=1)
        last = puzzle.measure_all(longer)[:, -1]
        kept = _choose_longer(puzzle, last.reshape(-1, count))
        if beginnings.shape[1]:
            finished += _list_found(beginnings, distances, ~kept.any(dim=1))
        rows = kept.reshape(-1).nonzero()[:, 0]
        if len(rows) > _MOST_BEGINNINGS:
            rows = rows[last[rows].argsort()[:_MOST_BEGINNINGS]]
        distances = torch.cat([distances[rows // count], last[rows, None]], dim=1)
        beginnings = longer[rows]
    finished += _list_found(beginnings, distances, torch.ones(len(beginnings), dtype=torch.bool))
    return puzzle.choose_best([found for found in finished if found.tokens])


def _choose_longer(puzzle: Puzzle, distances: Tensor) -> Tensor:
    """Say which tokens follow which beginnings, (beginnings, tokens)."""
    noise = puzzle.noise
    best = distances.min(dim=0).values
    if puzzle.by_place and bool((best <= puzzle.limit).any()):
        # Each token follows a beginning, so that the worst of the best says how far right ones are.
        noise = max(noise, float(best[best <= puzzle.limit].max()))
    return distances <= min(puzzle.limit, _SLACK * noise)


def _list_found(sequences: Tensor, distances: Tensor, which: Tensor) -> Iterator[Found]:
    for row in which.nonzero()[:, 0].tolist():
        yield Found(tuple(sequences[row].tolist()), float(distances[row].mean()))


@dataclass
class _Search:
    """A search for whole sequences, as a token's input depends on all others.

    Attributes
    ----------
    puzzle
        What they are made of.
    draw
        Draws where searches start.
    tries
        Searches for a sequence that holds a token.
    found
        Sequences that were found.
    explained
        At each place the tokens of these.
    """

    puzzle: Puzzle
    draw: torch.Generator
    tries: int
    found: dict[Tokens, Found] = field(default_factory=dict)
    explained: list[set[int]] = field(default_factory=list)

    def run(self) -> list[Found]:
        """Find sequences that explain all tokens, the longest ones first."""
        longest = len(self.puzzle.allowed)
        self.explained = [set() for _ in range(longest)]
        for length in range(longest, 0, -1):
            # Whatever stands last is in a longer sequence that was found, or ends one.
            for token in self._list_unexplained(length - 1):
                self._try(length, length - 1, token, self.tries)
        for place in range(longest):
            for token in self._list_unexplained(place):
                any(self._try(length, place, token, 1) for length in range(longest, place, -1))
        if self.puzzle.most is not None:
            self._search_further()
        return self.puzzle.choose_best([*self.found.values()])

    @property
    def _is_done(self) -> bool:
        return self.puzzle.most is not None and len(self.found) >= self.puzzle.most

    def _list_unexplained(self, place: int) -> list[int]:
        if self._is_done:
            return []
        return [token for token in self.puzzle.allowed[place].tolist() if token not in self.explained[place]]

    def _search_further(self) -> None:
        """Search for sequences of which each token is in another one, too."""
        lengths = sorted({len(tokens) for tokens in self.found}, reverse=True)
        for length in lengths:
            in_vain = 0
            while in_vain < _IN_VAIN and not self._is_done:
                in_vain = 0 if self._try(length, None, 0, 1) else in_vain + 1

    def _try(self, length: int, place: int | None, token: int, tries: int) -> bool:
        """Search for new sequences of a length that hold a token; say whether one was found."""
        for _ in range(tries):
            if place is not None and token in self.explained[place]:
                return True
            new = 0
            for found in self._climb(length, place, token):
                if found.tokens not in self.found:
                    new += 1
                    self.found[found.tokens] = found
                    for other, own in enumerate(found.tokens):
                        self.explained[other].add(own)
            if new:
                return True
        return False

    def _climb(self, length: int, place: int | None, token: int) -> Iterator[Found]:
        """Start from random sequences, change one token after another to what is nearest, and yield what is found."""
        now = torch.stack([self._draw_tokens(other) for other in range(length)], dim=1)
        if place is not None:
            now[:, place] = token
        score = self._score(now)
        # How near a sequence with one other token comes.
        others = torch.full((len(now),), torch.inf, dtype=torch.float64)
        for _ in range(_ROUNDS):
            before = now.clone()
            others.fill_(torch.inf)
            for other in torch.randperm(length, generator=self.draw).tolist():
                if other == place:
                    continue
                now, score, second = self._change(now, other)
                others = torch.minimum(others, second)
            if torch.equal(now, before):
                break
        is_sharp = score * _SHARPER <= others
        is_near = score <= _SLACK * self.puzzle.noise
        good = (score <= self.puzzle.limit) & (is_sharp | is_near)
        for row in good.nonzero()[:, 0].tolist():
            yield Found(tuple(now[row].tolist()), float(score[row]))

    def _draw_tokens(self, place: int) -> Tensor:
        """Draw tokens of a place, from those that no sequence explains, if there are any."""
        left = self._list_unexplained(place) or self.puzzle.allowed[place].tolist()
        picked = torch.randint(len(left), (_STARTS,), generator=self.draw)
        return torch.tensor(left)[picked]

    def _change(self, now: Tensor, place: int) -> tuple[Tensor, Tensor, Tensor]:
        """Take the nearest token at a place; return sequences, how near they are, and how near the next best are."""
        tokens = self.puzzle.allowed[place]
        many = now.repeat_interleave(len(tokens), 0)
        many[:, place] = tokens.repeat(len(now))
        scores = self._score(many).reshape(len(now), -1)
        best = scores.argmin(dim=1)
        rows = torch.arange(len(now))
        changed = now.clone()
        changed[:, place] = tokens[best]
        score = scores[rows, best]
        scores[rows, best] = torch.inf
        return changed, score, scores.min(dim=1).values

    def _score(self, sequences: Tensor) -> Tensor:
        """Return how far whole sequences are: the root of the mean square over their tokens."""
        return self.puzzle.measure_all(sequences).square().mean(dim=1).sqrt()


def search_whole(puzzle: Puzzle, *, seed: int, tries: int) -> list[Found]:
    """Find the sequences of a model that looks both ways, by changing one token after another (DAGER for encoders)."""
    if not len(puzzle.allowed):
        return []
    return _Search(puzzle, torch.Generator().manual_seed(seed), tries).run()
