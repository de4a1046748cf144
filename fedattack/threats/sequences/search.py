"""Put tokens together to sequences whose inputs of the second attention layer lie in the span of its gradient."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Tokens = tuple[int, ...]

Leave = Callable[[Tensor], Tensor]
"""Takes sequences (n, tokens) and returns what of each input is outside the span, (n, tokens, width)."""

# Sequences that are measured together.
_AT_ONCE = 1024

# Beginnings that are gone on with: for each sequence that there is, or in all where nobody knows how many there are.
_FOR_EACH, _IN_ALL = 4, 256

# By how much the farthest input that is right may be off more in the second layer than in the first.
_SLACK = 10.0

# By how much the nearest wrong input is farther than the farthest right one, at least.
_JUMP = 2.0

# By how much a whole sequence may be off more than the farthest input in the first layer.
_NEAR = 1.5

# Rounding alone takes inputs of the second layer so far from the span, where the first layer's noise is least. The
# nearest wrong sequences of two were over ten times as far.
_ROUNDING = 5e-5

# Starts of one search, of which some are drawn at random; and rounds in which each token is changed.
_STARTS, _DRAWN, _ROUNDS = 8, 4, 12

# A search that is no nearer after a round than this share of before is given up.
_STUCK = 0.95

# Tokens that are like another one, among which starts are drawn.
_LIKE = 3

# Drawn sequences in which each token is put to see how it would have to be completed.
_SETTINGS = 8


def find_jump(distances: Tensor, least: float, most: float) -> float:
    """Return the largest distance before they jump, looked for beyond ``least`` and up to ``most``."""
    reached = min(least, most)
    for distance in distances[(distances > reached) & (distances <= most)].sort().values.tolist():
        if distance > _JUMP * reached:
            break
        reached = distance
    return reached


@dataclass(frozen=True)
class FoundSequence:
    """A sequence, and how far its inputs are from the span on average."""

    tokens: Tokens
    distance: float


@dataclass(frozen=True)
class Puzzle:
    """What sequences are made of."""

    allowed: Sequence[Tensor]  # At each place the tokens that are there, by the first layer.
    leave: Leave  # Gives what is outside the span of the second layer.
    limit: float  # How far an input may be from it.
    noise: float  # How far inputs of the first layer were that are within its span.
    # Whether the first layer tells places apart: then each token of ``allowed`` is in a sequence at its place.
    by_place: bool
    most: int | None  # How many sequences there are at most; ``None`` if that is not known.

    def measure(self, sequences: Tensor) -> Tensor:
        """Return how far each input of any number of sequences (n, tokens) is from the span, (n, tokens)."""
        if not len(sequences):
            return torch.zeros(sequences.shape, dtype=torch.float64)
        return torch.cat([self.leave(part).norm(dim=-1) for part in sequences.split(_AT_ONCE)])

    def choose_best(self, found: Sequence[FoundSequence]) -> list[FoundSequence]:
        """Return the sequences, the nearest first, and no more than there are."""
        return sorted(found, key=lambda each: each.distance)[: self.most]


def build_forward(puzzle: Puzzle) -> list[FoundSequence]:
    """Find the sequences of a model that looks back only, token by token (DAGER for decoders)."""
    finished: list[FoundSequence] = []
    beginnings = torch.zeros((1, 0), dtype=torch.int64)
    distances = torch.zeros((1, 0), dtype=torch.float64)
    most = _IN_ALL
    if puzzle.most is not None:
        most = _FOR_EACH * puzzle.most
    for allowed in puzzle.allowed:
        if not len(beginnings) or not len(allowed):
            break
        count = len(allowed)
        if len(beginnings) > most:
            nearest = distances.mean(dim=1).argsort()[:most]
            beginnings, distances = beginnings[nearest], distances[nearest]
        longer = torch.cat([beginnings.repeat_interleave(count, 0), allowed.repeat(len(beginnings))[:, None]], dim=1)
        last = puzzle.measure(longer)[:, -1]
        if not puzzle.by_place and longer.shape[1] > 1:
            # A token that repeats the first one, and nothing else, attends to what the first one attends to.
            last[(longer == longer[:, :1]).all(dim=1)] = torch.inf
        kept = _choose_longer(puzzle, last.reshape(-1, count))
        if beginnings.shape[1]:
            finished += _list_found(beginnings, distances, ~kept.any(dim=1))
        rows = kept.reshape(-1).nonzero()[:, 0]
        distances = torch.cat([distances[rows // count], last[rows, None]], dim=1)
        beginnings = longer[rows]
    finished += _list_found(beginnings, distances, torch.ones(len(beginnings), dtype=torch.bool))
    return puzzle.choose_best([found for found in finished if found.tokens])


def _choose_longer(puzzle: Puzzle, distances: Tensor) -> Tensor:
    """Say which tokens follow which beginnings, (beginnings, tokens): up to where distances jump."""
    return distances <= find_jump(distances, puzzle.noise, min(puzzle.limit, _SLACK * puzzle.noise))


def _list_found(sequences: Tensor, distances: Tensor, which: Tensor) -> Iterator[FoundSequence]:
    for row in which.nonzero()[:, 0].tolist():
        yield FoundSequence(tuple(sequences[row].tolist()), float(distances[row].mean()))


@dataclass
class _SequenceSearch:
    """A search for whole sequences, as a token's input depends on all others."""

    puzzle: Puzzle  # What they are made of.
    draw: torch.Generator  # Draws where searches start.
    tries: int  # Searches in vain, one after another, after which no further sequence of a length is looked for.
    found: dict[Tokens, FoundSequence] = field(default_factory=dict)  # Sequences that were found.
    explained: list[set[int]] = field(default_factory=list)  # At each place the tokens of these.
    # By length, at each place what is outside of the span for each token that is allowed, (tokens, width), in sequences
    # that are drawn: tokens of one sequence lack the same, as attention brings them about the same.
    left: dict[int, list[Tensor]] = field(default_factory=dict)

    def run(self) -> list[FoundSequence]:
        """Find sequences that explain all tokens, the longest ones first."""
        longest = len(self.puzzle.allowed)
        self.explained = [set() for _ in range(longest)]
        for length in range(longest, 0, -1):
            in_vain = 0
            for place, token in self._order_tokens(length):
                if self._is_done or in_vain == self.tries:
                    break
                if token not in self.explained[place]:
                    in_vain += 1
                    if self._try(length, place, token):
                        in_vain = 0
        if self.puzzle.most is not None:
            self._search_further()
        return self.puzzle.choose_best([*self.found.values()])

    @property
    def _is_done(self) -> bool:
        return self.puzzle.most is not None and len(self.found) >= self.puzzle.most

    def _order_tokens(self, length: int) -> list[tuple[int, int]]:
        """List the tokens that no sequence explains with their places, those first whose likes make a near sequence."""
        starts: list[Tensor] = []
        pairs: list[tuple[int, int]] = []
        for place in range(length):
            for token in self._list_unexplained(place):
                pairs.append((place, token))
                starts.append(self._start(length, place, token)[0])
        if not pairs:
            return []
        return [pairs[number] for number in self._score(torch.stack(starts)).argsort().tolist()]

    def _list_unexplained(self, place: int) -> list[int]:
        if self._is_done:
            return []
        return [token for token in self.puzzle.allowed[place].tolist() if token not in self.explained[place]]

    def _search_further(self) -> None:
        """Search for sequences of which each token is in another one, too."""
        for length in sorted({len(tokens) for tokens in self.found}, reverse=True):
            in_vain = 0
            while in_vain < self.tries and not self._is_done:
                place = int(torch.randint(length, (1,), generator=self.draw))
                tokens = self.puzzle.allowed[place]
                token = int(tokens[torch.randint(len(tokens), (1,), generator=self.draw)])
                in_vain += 1
                if self._try(length, place, token):
                    in_vain = 0

    def _try(self, length: int, place: int, token: int) -> bool:
        """Search for new sequences of a length that hold a token; say whether one was found."""
        new = 0
        for found in self._climb(length, place, token):
            if found.tokens not in self.found:
                new += 1
                self.found[found.tokens] = found
                for other, own in enumerate(found.tokens):
                    self.explained[other].add(own)
        return new > 0

    def _climb(self, length: int, place: int, token: int) -> Iterator[FoundSequence]:
        """Change tokens to the nearest, from the likeliest start and then from the others, and yield what is found."""
        starts = self._start(length, place, token)
        for now in (starts[:1], starts[1:]):
            now, score = self._descend(now, place)
            rows = self._is_found(score).nonzero()[:, 0].tolist()
            for row in rows:
                yield FoundSequence(tuple(now[row].tolist()), float(score[row]))
            if rows:
                return

    def _descend(self, now: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Change one token after another to the nearest; return sequences, and how near they are."""
        score = self._score(now)
        for _ in range(_ROUNDS):
            if bool(self._is_found(score).any()):
                break
            before = score
            for other in torch.randperm(now.shape[1], generator=self.draw).tolist():
                if other != place:
                    now, score = self._change(now, other)
            if bool((score > _STUCK * before).all()):
                break
        return now, score

    def _is_found(self, score: Tensor) -> Tensor:
        return score <= min(self.puzzle.limit, max(_NEAR * self.puzzle.noise, _ROUNDING))

    def _start(self, length: int, place: int, token: int) -> Tensor:
        """Return sequences to start from: of tokens that lack what this one lacks, the likest first, and drawn ones."""
        if length not in self.left:
            self.left[length] = self._list_left(length)
        left = self.left[length]
        (row,) = (self.puzzle.allowed[place] == token).nonzero()[:, 0].tolist()
        own = left[place][row]
        columns = []
        for other in range(length):
            allowed = self.puzzle.allowed[other]
            like = allowed[(left[other] - own).norm(dim=-1).argsort()[:_LIKE]]
            near = like[torch.randint(len(like), (_STARTS - _DRAWN,), generator=self.draw)]
            near[0] = like[0]
            columns.append(torch.cat([near, self._draw_tokens(other, _DRAWN)]))
        now = torch.stack(columns, dim=1)
        now[:, place] = token
        return now

    def _list_left(self, length: int) -> list[Tensor]:
        """Return at each place what is outside of the span for each token, as a mean over drawn sequences."""
        found = []
        columns = [self._draw_tokens(other, _SETTINGS) for other in range(length)]
        settings = torch.stack(columns, dim=1)
        for place in range(length):
            of_place = []
            for token in self.puzzle.allowed[place].tolist():
                settings[:, place] = token
                of_place.append(self.puzzle.leave(settings)[:, place].mean(dim=0))
            settings[:, place] = columns[place]
            found.append(torch.stack(of_place))
        return found

    def _draw_tokens(self, place: int, count: int) -> Tensor:
        """Draw tokens of a place, from those that no sequence explains, if there are any."""
        left = self._list_unexplained(place) or self.puzzle.allowed[place].tolist()
        picked = torch.randint(len(left), (count,), generator=self.draw)
        return torch.tensor(left)[picked]

    def _change(self, now: Tensor, place: int) -> tuple[Tensor, Tensor]:
        """Take the nearest token at a place; return sequences, and how near they are."""
        tokens = self.puzzle.allowed[place]
        many = now.repeat_interleave(len(tokens), 0)
        many[:, place] = tokens.repeat(len(now))
        scores = self._score(many).reshape(len(now), -1)
        best = scores.argmin(dim=1)
        changed = now.clone()
        changed[:, place] = tokens[best]
        return changed, scores[torch.arange(len(now)), best]

    def _score(self, sequences: Tensor) -> Tensor:
        """Return how far whole sequences are: the root of the mean square over their tokens."""
        return self.puzzle.measure(sequences).square().mean(dim=1).sqrt()


def search_whole(puzzle: Puzzle, *, seed: int, tries: int) -> list[FoundSequence]:
    """Find the sequences of a model that looks both ways, by changing one token after another (DAGER for encoders)."""
    if not len(puzzle.allowed):
        return []
    return _SequenceSearch(puzzle, torch.Generator().manual_seed(seed), tries).run()
