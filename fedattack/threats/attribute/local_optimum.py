"""A client's local optimum, decoded from the models that it received and those that it returned.

Driouich et al. 2022 (Algorithm 3, lines 1 and 2; Proposition 2), after Xu & Neglia 2021, Observation 1. A client that
trains on its own examples moves a received model θ to θ − G(θ), and stops moving at its local optimum. For least
squares with full batches G is affine with a symmetric matrix, G(θ) = A(θ − θ*), whatever the number of local steps.
A is

- η(H + w) after one step of size η with weight decay w,
- I − (I − ηH − ηw)^E after E steps.

Here H = (2/m)XᵀX holds the second derivatives of the mean squared error over m examples, and c = (2/m)Xᵀy is minus its
gradient at 0.

At 100 unknowns and 101 messages, spread evenly, H, c and θ* come out within 1e-9 in float64. Flower's messages are
float32, of which 2e-5 remains. Averaging spreads models unevenly; what that leaves is tracked as an error. The number
of ones, ρ times the examples, is whole, and thus exact in either.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpocon

Array = NDArray[np.float64]

# A direction counts as seen if noise changes the response to it by less than this share of the largest response.
_NOISE = 0.1
# Eigenvalues below this share of the largest are taken for zero where rounding leaves no larger doubt.
_SMALL = 1e-12
# Rounds from which the public attributes decode: each gives p equations for about p unknowns.
_ROUNDS = 200
# Share of the gradients that rounding in float32 may leave unexplained.
_EXACT = 1e-3
# An attribute that moves the output by less than this share of the errors tells nothing; the sign is rounding.
_WEIGHTLESS = 1e-4
# Turns between the problem and the models on the way to it, and steps to moments that are possible.
_TURNS = 6
_PROJECTIONS = 1_000


@dataclass(frozen=True)
class UpdateMap:
    """A client's G, fitted as an affine map where its messages reach; p parameters, k directions seen."""

    basis: Array  # (p, k): orthonormal; the directions in which the received models differ by more than noise hides.
    inside: Array  # (k, k): A within these directions, symmetric.
    outside: Array  # (k, p): what A turns each direction into beyond them.
    error: Array  # (k,): standard error of A's response to each direction.
    point: Array  # (p,): the last received model, and by how much the client moved it (received − returned).
    move: Array

    @property
    def rank(self) -> int:
        """How many directions the messages show, k."""
        return int(self.basis.shape[1])


def fit_update_maps(received: Array, moves: Array, precision: float) -> list[UpdateMap]:
    """Fit G for several clients that received the same models; the models are decomposed once for all of them.

    The fit is by least squares over all rounds in the singular directions of the received models. In these coordinates
    A_ij shows twice, in the response to i and in that to j. Each error falls with the spread along its direction. The
    weighted mean is the least-squares solution among symmetric matrices. Only a direction's own curvature still
    suffers where the spread is small.

    Parameters
    ----------
    received
        (rounds, p): models sent to the clients.
    moves
        (clients, rounds, p): received − returned.
    precision
        Relative rounding error of the returned models; 1.2e-7 in float32. Where there are more rounds than directions,
        scatter around the fit, as of mini-batches, stands in if it is larger.

    Returns
    -------
    list of UpdateMap
        One a client.
    """
    rounds, p = received.shape
    # Models less their mean are left·diag(spread)·right: right holds directions (p), spread how far models differ along
    # them.
    left, spread, right = np.linalg.svd(received - received.mean(axis=0), full_matrices=False)
    reach = min(rounds - 1, p)
    if reach:
        reach = int(np.sum(spread[:reach] > max(rounds, p) * np.finfo(float).eps * spread[0]))
    left, spread, right = left[:, :reach], spread[:reach], right[:reach]
    projected = left.T @ moves
    scatter = moves - moves.mean(axis=1, keepdims=True) - left @ projected
    rounding = precision * np.sqrt(np.mean(received**2))
    # Rounds beyond those that an affine map fits exactly: their scatter shows the noise.
    free = rounds - 1 - reach
    maps = []
    for client, move in enumerate(moves):
        noise = rounding
        if free:
            noise = max(rounding, np.sqrt(np.sum(scatter[client] ** 2) / (free * p)))
        # Least squares: A's response to direction i is Σ_t left_ti·move_t / spread_i, with an error of noise /
        # spread_i.
        response = projected[client] / spread[:, None]
        error = noise / spread
        scale = np.linalg.norm(response[0]) if reach else 0.0
        k = int(np.sum(error * np.sqrt(p) < _NOISE * scale))
        basis, response = right[:k].T, response[:k]
        raw, weight = response @ basis, spread[:k, None] ** 2
        # A_ij as the response to i shows it, and as that to j does, weighed by their precision spread².
        inside = (weight * raw + weight.T * raw.T) / (weight + weight.T)
        maps.append(UpdateMap(basis, inside, response - raw @ basis.T, error[:k], received[-1], move[-1]))
    return maps


@dataclass(frozen=True)
class LeastSquares:
    """A client's least-squares problem: the mean squared error is θᵀHθ/2 − cᵀθ + a constant."""

    H: Array  # (p, p) and (p,).
    c: Array
    # (p,): θ*; along directions in which H is zero, and θ* is not unique, as in the last received model.
    optimum: Array
    determined: NDArray[np.bool_]  # (p,): which entries of θ* are unique.


def decode_least_squares(
    fit: UpdateMap, *, lr: float, steps: int = 1, weight_decay: float = 0.0
) -> LeastSquares | None:
    """Decode H, c and θ* from messages alone (Proposition 2).

    p + 1 messages in general position suffice. Fewer do if H has a rank r < p, as with fewer examples than parameters.
    From r + 1 messages on, the response to r directions shows the whole of a positive semi-definite A, which is
    (AV)(VᵀAV)⁺(AV)ᵀ. Two signs tell that this is so: the response has a smaller rank than there are directions, and
    the last update lies in its span.

    Parameters
    ----------
    fit
        Of a client that trains on all its examples in each step.
    lr, steps, weight_decay
        How it trains. For an even number of steps, ``lr`` times H's largest eigenvalue must be below 1, or H comes out
        too small there.

    Returns
    -------
    LeastSquares or None
        None if the messages do not determine it.
    """
    A = _whole(fit)
    if A is None:
        return None
    # θ − θ* = A⁺·(received − returned), up to what A does not see.
    step, determined, clear = _solve(A, fit.move, fit.error, fit.basis)
    curvature = A / lr if steps == 1 else _per_step(A, lr, steps)
    # The client stops at θ*, where (H + w)θ* = c.
    c = curvature @ (fit.point - step)
    H = curvature - weight_decay * np.eye(len(A))
    if weight_decay:
        # The client's training does not stop where its error is least.
        step, determined, clear = _solve(H, H @ fit.point - c, fit.error / lr, fit.basis)
    return LeastSquares(H, c, fit.point - step, determined) if clear else None


def _whole(fit: UpdateMap) -> Array | None:
    p, k = fit.basis.shape
    # All directions are seen.
    if k == p:
        return np.asarray(fit.basis @ fit.inside @ fit.basis.T)
    if not k:
        return None
    values, vectors = np.linalg.eigh(fit.inside)
    kept = values > max(3 * np.sqrt(k) * fit.error.max(), _SMALL * values[-1])
    # AV in the eigenvectors of VᵀAV, where the pseudo-inverse is a division.
    response = vectors.T @ (fit.inside @ fit.basis.T + fit.outside)
    # Noise hides small eigenvalues from k directions alone, so that the least of those kept must stand out clearly.
    if kept.all() or not kept.any() or fit.error.max() > _NOISE**2 * values[kept].min():
        return None
    # The last update is A(θ − θ*), and lies in A's span if all of that was seen.
    span = np.linalg.svd(response[kept], full_matrices=False)[2]
    beyond = fit.move - span.T @ (span @ fit.move)
    if np.linalg.norm(beyond) > _NOISE**2 * np.linalg.norm(fit.move):
        return None
    return np.asarray(response[kept].T @ (response[kept] / values[kept, None]))


def _solve(A: Array, b: Array, error: Array, basis: Array) -> tuple[Array, NDArray[np.bool_], bool]:
    """Return A⁺b for a symmetric positive semi-definite A, whose response to ``basis`` (p, k) has an ``error`` (k,).

    Returns
    -------
    solution, determined, clear
        (p,), which of its entries (p,) are unique, and whether each eigenvalue is either clearly more than its error or
        may as well be zero. One in between is too uncertain to divide by and too large to leave out.
    """
    try:
        # This is several times faster than the eigenvalues, and enough for most problems.
        factor = cho_factor(A, lower=True)
    except np.linalg.LinAlgError:
        pass
    else:
        largest = np.abs(A).sum(axis=0).max()
        # LAPACK's estimate of 1/(‖A‖·‖A⁻¹‖) from the factor: where it is far above the relative error, all eigenvalues
        # are.
        if dpocon(factor[0], largest, uplo="L")[0] > max(error.max() / largest, _SMALL) / _NOISE**2:
            return cho_solve(factor, b), np.ones(len(A), dtype=bool), True
    values, vectors = np.linalg.eigh(A)
    # What two directions share is known as well as the better one of them shows it.
    # The error of vᵀAv for an eigenvector v is that of the directions it is made of.
    shared = np.minimum.outer(error, error) ** 2 @ np.square(basis.T @ vectors)
    noise = np.sqrt(shared.max(axis=0))
    kept = values > np.maximum(3 * noise, _SMALL * values[-1])
    # What of each parameter lies in directions that are taken for zero.
    unseen = np.square(vectors[:, ~kept]).sum(axis=1)
    clear = bool(np.all(values[kept] * _NOISE**2 > noise[kept]))
    return vectors[:, kept] @ ((vectors[:, kept].T @ b) / values[kept]), unseen < _SMALL**0.5, clear


def _per_step(A: Array, lr: float, steps: int) -> Array:
    """Return the B for which A = I − (I − lr·B)^steps."""
    values, vectors = np.linalg.eigh(A)
    # After E steps 1 − a = (1 − ηb)^E; for an even E its sign is lost, which is why ηb must be below 1.
    left = 1 - values
    single = (1 - np.sign(left) * np.abs(left) ** (1 / steps)) / lr
    return np.asarray((vectors * single) @ vectors.T)


def best_attribute(rest: Array, weight: float) -> Array:
    """Return s̃ (m,), the attribute with which no example has an error left (Algorithm 3, line 3).

    Parameters
    ----------
    rest
        (m,): what the model leaves unexplained of the labels where the attribute has its first value.
    weight
        By how much the second value changes the output, θ_s. All are the same if it is as good as zero.
    """
    if abs(weight) <= _WEIGHTLESS * np.sqrt(np.mean(np.square(rest))):
        return np.full(len(rest), 0.5)
    return rest / weight


@dataclass(frozen=True)
class BinaryAttribute:
    """A least-squares problem in which all but a binary attribute s of the client's m examples is known.

    The model's output for example i is (base_i + s_i·change)·θ, so that H and c hold of s only its moments baseᵀs, Σs
    and sᵀy.
    """

    base: Array  # (m, p): derivative of the output by the parameters, for each example with the first value.
    change: Array  # (p,): by how much the second value changes that derivative.
    y: Array  # (m,): labels.

    @cached_property
    def _of_moments(self) -> tuple[Array, Array]:
        """Which numbers are unknown, as rows (q, m) applied to s, and baseᵀs in terms of them (p, q).

        Columns that do not vary, such as the bias, tell of s only its sum.
        """
        constant = np.ptp(self.base, axis=0) == 0
        free = np.flatnonzero(~constant)
        rows = np.vstack([self.base[:, free].T, np.ones(len(self.y)), self.y])
        back = np.zeros((self.base.shape[1], len(rows)))
        back[free, np.arange(len(free))] = 1
        back[constant, -2] = self.base[0, constant]
        return rows, back

    def problem(self, moments: Array, point: Array, error: float) -> LeastSquares:
        """Return the problem whose unknown numbers are ``moments`` (q,); see :func:`decode_with_public`."""
        scale = 2 / len(self.y)
        mixed = np.outer(self._of_moments[1] @ moments, self.change)
        # Σ(base_i + s_i·change)(base_i + s_i·change)ᵀ with s_i² = s_i: only baseᵀs and Σs are unknown.
        square = self.base.T @ self.base + mixed + mixed.T + moments[-2] * np.outer(self.change, self.change)
        H, c = scale * square, scale * (self.base.T @ self.y + self.change * moments[-1])
        noise = np.full(len(H), error * float(np.linalg.norm(H, 2)))
        step, determined, _ = _solve(H, H @ point - c, noise, np.eye(len(H)))
        return LeastSquares(H, c, point - step, determined)

    def equations(self, points: Array, gradients: Array) -> tuple[Array, Array]:
        """Return the linear equations (rounds·p, q), (rounds·p,) for the moments that gradients (rounds, p) give."""
        rows, back = self._of_moments
        # m/2 times the gradient at θ is XᵀXθ − Xᵀy, which is linear in the moments baseᵀs, Σs and sᵀy.
        weight = points @ self.change
        design = weight[:, None, None] * back + self.change[:, None] * (points @ back)[:, None, :]
        design[:, :, -2] += weight[:, None] * self.change
        design[:, :, -1] -= self.change
        known = points @ (self.base.T @ self.base) - self.base.T @ self.y
        return design.reshape(-1, len(rows)), (len(self.y) / 2 * gradients - known).reshape(-1)

    def possible(self, design: Array, wanted: Array) -> Array:
        """Return the moments (q,) that solve the equations best among those of an s between 0 and 1."""
        rows = self._of_moments[0]
        # ‖design·moments − wanted‖ changes by a constant if both are replaced by their part within the span of design.
        orthogonal, triangle = np.linalg.qr(design)
        matrix, target = triangle @ rows, orthogonal.T @ wanted
        # One over the gradient's Lipschitz constant: then each step descends.
        rate = 1 / np.linalg.norm(matrix, 2) ** 2
        s = ahead = np.full(len(self.y), 0.5)
        momentum = 1.0
        for _ in range(_PROJECTIONS):
            before, s = s, np.clip(ahead - rate * (matrix.T @ (matrix @ ahead - target)), 0, 1)
            # Nesterov's sequence, as in FISTA (Beck & Teboulle 2009), with a projection onto [0, 1] as the proximal
            # step.
            faster = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
            ahead = s + (momentum - 1) / faster * (s - before)
            momentum = faster
        return np.asarray(rows @ s)

    def estimates(self, problem: LeastSquares) -> Array:
        """Return the s̃ (m,) between 0 and 1 with the moments that H and c hold, nearest to Algorithm 3's.

        Algorithm 3 uses ρ alone of what H and c tell of s. Its s̃ = (y − base·θ*)/θ*_s has the right moments, but is
        hardly ever between 0 and 1. With m up to the number of moments this finds s itself. Alternating projections
        (Dykstra).
        """
        weight = float(self.change @ problem.optimum)
        rows, back = self._of_moments
        m, size = len(self.y), self.change @ self.change
        # H·change and c·change hold the moments, for which both are solved.
        along = m / 2 * problem.H @ self.change - self.base.T @ (self.base @ self.change)
        mixing = size * back + np.outer(self.change, self.change @ back)
        mixing[:, -2] += size * self.change
        product = (m / 2 * problem.c - self.base.T @ self.y) @ self.change / size
        system = np.vstack([mixing, np.eye(len(rows))[-1]])
        moments = np.linalg.lstsq(system, np.append(along, product), rcond=None)[0]
        # An orthonormal basis of the rows: s has the right moments where its coordinates in it are ``wanted``.
        across, spread, left = np.linalg.svd(rows.T, full_matrices=False)
        kept = spread > 1e-9 * spread[0]
        across, wanted = across[:, kept], (left[kept] @ moments) / spread[kept]
        s = best_attribute(self.y - self.base @ problem.optimum, weight)
        correction = np.zeros(m)
        for _ in range(_PROJECTIONS):
            # Dykstra's correction of the box: without it alternating projections would end in some point of the
            # intersection, and not in the nearest. The other set is affine and needs none.
            inside = np.clip(s + correction, 0, 1)
            correction += s - inside
            s = inside + across @ (wanted - across.T @ inside)
        return np.clip(s, 0, 1)


@dataclass(frozen=True)
class PublicDecoding:
    """What messages and public attributes together tell; ``exact`` if they agree but for rounding."""

    problem: LeastSquares
    exact: bool


def decode_with_public(
    received: Array,
    moves: Array,
    known: BinaryAttribute,
    *,
    lr: float,
    steps: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> PublicDecoding | None:
    """Decode H, c and θ* from one or two messages on, given all of the client's public attributes and labels.

    Only p + 1 numbers are unknown in H and c, p with a bias, and each update gives p equations in them. Models that
    hardly differ in some directions, as with full participation, do not matter here. (This is not in the paper, whose
    Algorithm 3 decodes from messages alone and uses the public attributes afterwards.)

    After one step on all examples the update is the gradient where the client started. Otherwise it is about the sum of
    the gradients along the way. The mean model on that way follows from the problem, and the problem from it, in turn.
    Mini-batches add noise, against which it helps to allow only moments that an s between 0 and 1 can have.

    Parameters
    ----------
    received, moves
        (rounds, p): models sent to the client, and received − returned.
    known
        The client's examples without the attribute, all of them.
    lr, steps, momentum, weight_decay
        How it trains in a round.

    Returns
    -------
    PublicDecoding or None
        None if the messages do not determine it, as where no model weighs the attribute.
    """
    chosen = np.unique(np.linspace(0, len(received) - 1, min(len(received), _ROUNDS)).round().astype(int))
    received, moves = received[chosen], moves[chosen]
    # Momentum turns a gradient in step k into Σ_j μ^j over the steps that follow.
    gain = lr * sum((steps - step) * momentum**step for step in range(steps))
    # Half way, until the problem says where the mean model was.
    points = received if steps == 1 else received - moves / 2
    design, wanted = known.equations(points, moves / gain - weight_decay * points)
    # Columns of one size, by which the rank of the system is judged.
    scale = np.linalg.norm(design, axis=0)
    if not scale.all() or not moves.any():
        return None
    scaled, _, rank, _ = np.linalg.lstsq(design / scale, wanted, rcond=1e-9)
    if rank < len(scale):
        return None
    moments = scaled / scale
    unexplained = np.linalg.norm(design @ moments - wanted) / np.linalg.norm(len(known.y) / 2 * moves / gain)
    # As many equations as unknowns agree whatever they say.
    if unexplained < _EXACT and (steps == 1 or len(design) > len(scale)):
        return PublicDecoding(known.problem(moments, received[-1], float(unexplained)), exact=True)
    for _ in range(_TURNS):
        problem = known.problem(known.possible(design, wanted), received[-1], 0.0)
        points = _mean_on_the_way(problem, received, lr, steps, weight_decay)
        design, wanted = known.equations(points, moves / gain - weight_decay * points)
    return PublicDecoding(problem, exact=False)


def _mean_on_the_way(problem: LeastSquares, received: Array, lr: float, steps: int, weight_decay: float) -> Array:
    """Return the mean (rounds, p) of the models at which a client that starts at ``received`` takes its gradients."""
    values, vectors = np.linalg.eigh(problem.H)
    values = np.maximum(values, 0) + weight_decay
    # Along an eigenvector with value λ a step leaves 1 − ηλ of the distance to the optimum. Its mean over the steps is
    # (1 − stays^E)/(E(1 − stays)).
    stays = np.clip(1 - lr * values, -1, 1)
    share = np.where(stays < 1, (1 - stays**steps) / (steps * np.where(stays < 1, 1 - stays, 1)), 1.0)
    centre = np.where(values > 0, (vectors.T @ problem.c) / np.where(values > 0, values, 1), 0.0)
    start = received @ vectors
    return np.asarray((np.where(values > 0, centre, start) * (1 - share) + start * share) @ vectors.T)


def extrapolate(received: Array, moves: Array, precision: float) -> Iterator[Array]:
    """Propose local optima (p,) of a client whose loss or training is of any kind; the caller takes the best one.

    The first proposal is the model that the client returned last. The others follow from maps fitted to all rounds, the
    latest half, and the latest ten. They are fitted at the midpoints of each local training, whose gradients the
    updates show best. Within the directions that the messages show, a proposal goes to the map's fixed point. Beyond
    them it goes as far as the client itself went, or as if the curvature there were the average of that within. Far
    from the received models the map is wrong, so that parts of the way from the returned model are proposed too.

    (Measured on least-squares and logistic models over 60 rounds with a passive server: an emulator network as in Xu &
    Neglia 2021, trained on the same messages and descended, always ended farther off than the last returned model.)
    """
    returned = received[-1] - moves[-1]
    yield returned
    # The mean of a way is near its middle.
    points = received - moves / 2
    for rounds in sorted({len(points), max(len(points) // 2, 2), 10}):
        if not 2 <= rounds <= len(points):
            continue
        (fit,) = fit_update_maps(points[-rounds:], moves[None, -rounds:], precision)
        for fixed_point in _fixed_points(fit):
            for share in (0.25, 0.5, 1.0):
                yield (1 - share) * returned + share * fixed_point


def _fixed_points(fit: UpdateMap) -> Sequence[Array]:
    if not fit.rank:
        return ()
    # Directions that hardly bend lead nowhere: the fixed point along them would be far off.
    values, vectors = np.linalg.eigh(fit.inside)
    kept = values > max(1e-3 * values[-1], 0.0)
    if not kept.any():
        return ()
    inverse = (vectors[:, kept] / values[kept]) @ vectors[:, kept].T
    within = fit.basis.T @ fit.move
    rest = fit.move - fit.basis @ within
    points = []
    # The client's own step beyond what is seen; and a Newton step, as if A there were the mean curvature.
    for beyond in (rest, rest / values[kept].mean()):
        points.append(fit.point - fit.basis @ (inverse @ (within - fit.outside @ beyond)) - beyond)
    return points
