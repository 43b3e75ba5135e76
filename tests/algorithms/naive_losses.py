"""The losses of all algorithms, of one step, as their papers write them.

Each function gets a window of stored steps, t and the row b, and says what the loss of
s_t, a_t is. Gradients go where the paper says: ``detach`` is written here and trusted
nowhere else.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from alf_lite.data_structures import StepType
from tests.algorithms.loss_contract import (
    GAMMA,
    NORMAL,
    SIZES,
    STEP_TYPES,
    UNIFORM,
    B,
    T,
    Terms,
    Window,
)


def _zeros() -> Tensor:
    return torch.zeros(())


def huber(error: Tensor) -> Tensor:
    size = error.abs()
    return 0.5 * error**2 if size <= 1 else size - 0.5


def squared_errors(w: Window, q: Tensor, target: Tensor, factor: float = 1.0) -> Terms:
    """Of all critics [n, D]; |δ| is the mean of their weighted errors."""
    target = target.detach()
    loss = sum(factor * (target - q_k).square().sum() for q_k in q)
    error = torch.stack([w.scalar(target - q_k).abs() for q_k in q]).mean().detach()
    return Terms(loss, {"critic_loss": loss}, error)


# SAC (arXiv:1812.05905) and its family


class SacWindow:
    """What SAC's equations speak of; values have a dimension more for the entropy."""

    def __init__(self, w: Window) -> None:
        self.w, self.algorithm = w, w.algorithm
        self.weights = w.weights
        if w.case.dims > 1:
            self.weights = torch.cat([w.weights, torch.ones(1)])
        self.temperatures = dict(self.algorithm._temperatures)

    def scalar(self, value: Tensor) -> Tensor:
        return value @ self.weights

    def smallest(self, values: Tensor) -> Tensor:
        return min(values, key=self.scalar)

    def draw(self, t: int) -> tuple[Tensor | None, Tensor | None]:
        """A vector of π(·|s_t) in [-1, 1], and its log-density, of all rows."""
        box = self.w.policy(t).box
        if box is None:
            return None, None

        def sample() -> tuple[Tensor, Tensor]:
            move, log_prob = box.rsample_and_log_prob()
            return torch.stack([move[:, 0], move[:, 1] / 5 - 1], -1), log_prob

        return self.w.know(("sample", t), sample)

    def values(self, critic: Any, t: int, b: int) -> Tensor:
        """Q_k(s_t, ·) [n, joint values, D'], given what π draws."""
        vector, _ = self.draw(t)
        key = id(critic), "of sample", t
        return self.w.know(key, lambda: self.w.values(critic, t, vector))[b]

    def expectation(self, t: int, b: int, values: Tensor) -> Tensor:
        """Over the discrete part of π, of the smallest: [n, A, D'] → [D']."""
        probs = self.w.policy(t).joint_probs(b)
        return sum(p * self.smallest(values[:, j]) for j, p in enumerate(probs))

    def entropies(self, t: int, b: int) -> dict[str, Tensor]:
        _, log_prob = self.draw(t)
        found = {}
        if log_prob is not None:
            found["continuous"] = -log_prob[b]
        if SIZES[self.w.case.action]:
            found["discrete"] = self.w.policy(t).choice_entropy(b)
        return found

    def bonus(self, t: int, b: int) -> Tensor:
        """Σ α H."""
        alpha = {k: x._log_alpha.exp().detach() for k, x in self.temperatures.items()}
        return sum(alpha[part] * h for part, h in self.entropies(t, b).items())

    def soft_value(self, t: int, b: int) -> Tensor:
        """V(s) = E_π [min_k Q_k(s, ·; θ⁻) − α log π], eq. 3."""
        critic = self.algorithm._critics.target
        value = self.expectation(t, b, self.values(critic, t, b))
        only = torch.zeros(len(value))
        only[-1] = 1.0  # the entropy has its own dimension, or there is just one
        return value + only * self.bonus(t, b)

    def targets(self, t: int, b: int) -> dict[str, float]:
        """H̄: −1 for each element in [-1, 1]; mostly one of the values allowed."""
        num_allowed = math.prod(sum(part) for part in self.w.allowed(t, b))
        found = {"continuous": math.log(1.0 * 5.0) - 2, "discrete": 0.0}
        if num_allowed > 1:
            rest = 0.1 / (num_allowed - 1)
            found["discrete"] = -0.9 * math.log(0.9) - 0.1 * math.log(rest)
        given = self.w.options.get("discrete_target_entropy")
        return found if given is None else {**found, "discrete": given}


def smallest_opinion(s: SacWindow, t: int, b: int) -> Tensor:
    """What the actor climbs: E_π min_k Q_k(s, ·)."""
    values = s.values(s.w.frozen(s.algorithm._critics.online), t, b)
    return s.scalar(s.expectation(t, b, values))


def mean_opinion(s: SacWindow, t: int, b: int) -> Tensor:
    """The same in REDQ (arXiv:2101.05982): of the mean of the critics."""
    values = s.values(s.w.frozen(s.algorithm._critics.online), t, b)
    probs = s.w.policy(t).joint_probs(b)
    return s.scalar(sum(p * values[:, j].mean(0) for j, p in enumerate(probs)))


def sac(
    w: Window,
    t: int,
    b: int,
    value: Any = SacWindow.soft_value,
    opinion: Any = smallest_opinion,
) -> Terms:
    """Eq. 5, 7 and 18."""
    s = w.know("sac", lambda: SacWindow(w))
    online = w.algorithm._critics.online
    reward, discount, end = w.n_step(t, b)
    next_value = value(s, end, b)
    if w.case.dims > 1:
        reward = torch.cat([reward, torch.zeros(1)])
    y = (reward + discount * next_value).detach()
    q = w.q(online, t, b)
    critic_loss = sum(0.5 * (q_k - y).square().sum() for q_k in q)
    policy_value = opinion(s, t, b)
    actor_loss = -(policy_value + s.bonus(t, b))
    targets = s.targets(t, b)
    alpha_loss = sum(
        s.temperatures[part]._log_alpha * (h.detach() - targets[part])
        for part, h in s.entropies(t, b).items()
    )
    parts = {
        "critic_loss": critic_loss,
        "actor_loss": actor_loss,
        "alpha_loss": alpha_loss,
    }
    error = torch.stack([s.scalar(y - q_k).abs() for q_k in q]).mean().detach()
    return Terms(critic_loss + actor_loss + alpha_loss, parts, error)


def redq(w: Window, t: int, b: int) -> Terms:
    return sac(w, t, b, opinion=mean_opinion)


def sac_without_bonus(w: Window, t: int, b: int) -> Terms:
    """The entropy is asked of the policy, and not of what follows."""
    return sac(w, t, b, value=expected_value)


def sac_lambda(w: Window, t: int, b: int) -> Terms:
    """V(s') is (1 − λ) V(s') + λ y' of the next step of the window."""
    return sac(w, t, b, value=lambda s, t, b: mixed_value(w, s.soft_value, t, b))


def mixed_value(w: Window, value: Any, t: int, b: int) -> Tensor:
    """(1 − λ) V(s_t) + λ y_t, or V(s_t) where the episode or the window ends."""
    now, td_lambda = value(t, b), w.options["td_lambda"]
    if w.is_last(t, b) or t == w.num_rows:
        return now
    reward, discount, end = w.n_step(t, b)
    if len(now) > len(reward):  # the entropy has its own dimension
        reward = torch.cat([reward, torch.zeros(1)])
    target = reward + discount * mixed_value(w, value, end, b)
    return (1 - td_lambda) * now + td_lambda * target


def edac(w: Window, t: int, b: int) -> Terms:
    """η / (2 (N−1)) Σ_{i≠j} cos(∇_a Q_i, ∇_a Q_j) at the action that was taken."""
    terms, s = sac(w, t, b), w.know("sac", lambda: SacWindow(w))
    vector = w.vector[:, t + 1].clone().requires_grad_()
    values = w.values(w.algorithm._critics.online, t, vector)
    taken = values[b, :, w.joint(w.taken(t, b))]
    slopes = [
        torch.autograd.grad(s.scalar(q_k), vector, create_graph=True)[0][b]
        for q_k in taken
    ]
    n = len(slopes)
    similarity = sum(
        slopes[i] @ slopes[j] / (slopes[i].norm() * slopes[j].norm()) / (n - 1)
        for i in range(n)
        for j in range(n)
        if i != j
    )
    loss = terms.loss + w.options["diversity_weight"] / 2 * similarity
    return Terms(loss, {**terms.parts, "similarity": similarity}, terms.td_error)


# TAAC (arXiv:2104.06521)


class TaacWindow:
    """Two actions of every step: the one before, and a new one."""

    def __init__(self, w: Window) -> None:
        self.w, self.algorithm = w, w.algorithm
        temperatures = self.algorithm._temperatures
        self.log_alpha = temperatures["continuous"]._log_alpha
        self.switch_log_alpha = temperatures["discrete"]._log_alpha
        self.switch_alpha = self.switch_log_alpha.exp().detach()

    def draw(self, t: int) -> tuple[Tensor, Tensor]:
        """A new vector of all rows, and its log-density."""

        def sample() -> tuple[Tensor, Tensor]:
            before = self.w.vector[:, t]
            inputs = {"observation": self.w.observation(t), "prev_action": before}
            policy, _ = self.algorithm._policy(inputs)
            move, log_prob = policy.rsample_and_log_prob()
            return torch.stack([move[:, 0], move[:, 1] / 5 - 1], -1), log_prob

        return self.w.know(("sample", t), sample)

    def value(self, critic: Any, t: int, b: int, is_new: bool) -> Tensor:
        """min_k Q_k(s_t, ·) [D] of one of them."""
        vector = self.draw(t)[0] if is_new else self.w.vector[:, t]
        key = id(critic), "value", t, is_new
        values = self.w.know(key, lambda: self.w.values(critic, t, vector))
        return self.w.smallest(values[b, :, 0])

    def both(self, t: int, b: int) -> tuple[Tensor, Tensor]:
        """What is believed of the two; gradients go to the new one only."""
        critic = self.w.frozen(self.algorithm._critics.online)
        old, new = (self.value(critic, t, b, is_new) for is_new in (False, True))
        return self.w.scalar(old), self.w.scalar(new)

    def beta(self, t: int, b: int) -> Tensor:
        """How often the old and the new one are taken."""
        if STEP_TYPES[b][t] == StepType.FIRST:
            return torch.tensor([0.0, 1.0])
        return (torch.stack(self.both(t, b)) / self.switch_alpha).softmax(0)

    def takes_new(self, t: int, b: int) -> bool:
        return bool(self.beta(t, b)[1] > 0.5)

    def goes_on(self, t: int, b: int) -> bool:
        """Whether the policy would have repeated, too."""
        is_same = torch.equal(self.w.vector[b, t], self.w.vector[b, t + 1])
        return is_same and not self.takes_new(t, b) and not self.w.is_last(t, b)

    def target(self, t: int, b: int) -> Tensor:
        """Rewards as long as both agree, and the value of what is chosen then."""
        total, discount, end = torch.zeros(self.w.case.dims), 1.0, t
        while True:
            end += 1
            total = total + discount * self.w.reward(end, b)
            discount *= GAMMA * self.w.steps.discount[b, end].item()
            if end == T - 1 or not self.goes_on(end, b):
                break
        critic = self.algorithm._critics.target
        return total + discount * self.value(critic, end, b, self.takes_new(end, b))


def taac(w: Window, t: int, b: int) -> Terms:
    """The objective of both stages, and targets that compare through."""
    s = w.know("taac", lambda: TaacWindow(w))
    beta, values, log_prob = s.beta(t, b), s.both(t, b), s.draw(t)[1][b]
    entropy = -torch.xlogy(beta, beta).sum()
    objective = beta[0] * values[0] + beta[1] * values[1] + s.switch_alpha * entropy
    actor_loss = s.log_alpha.exp().detach() * log_prob - objective
    alpha_loss = s.log_alpha * (-log_prob.detach() - (math.log(5) - 2))
    if beta[1] < 1:  # at FIRST there is nothing to decide
        target = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
        alpha_loss = alpha_loss + s.switch_log_alpha * (entropy.detach() - target)
    q = w.q(w.algorithm._critics.online, t, b)
    terms = squared_errors(w, q, s.target(t, b), factor=0.5)
    parts = {**terms.parts, "actor_loss": actor_loss, "alpha_loss": alpha_loss}
    loss = terms.loss + actor_loss + alpha_loss
    return Terms(loss, parts, terms.td_error)


# CQL (arXiv:2006.04779)


def expected_value(s: SacWindow, t: int, b: int) -> Tensor:
    """Without the entropy."""
    return s.expectation(t, b, s.values(s.algorithm._critics.target, t, b))


def best_value(s: SacWindow, t: int, b: int) -> Tensor:
    """max_a min_k Q_k(s, a; θ⁻), over the values that are allowed."""
    values = s.values(s.algorithm._critics.target, t, b)
    probs = s.w.policy(t).joint_probs(b)
    allowed = [j for j, p in enumerate(probs) if p > 0]
    return max((s.smallest(values[:, j]) for j in allowed), key=s.scalar)


BACKUPS = {"soft": SacWindow.soft_value, "expected": expected_value, "max": best_value}


def cql(w: Window, t: int, b: int) -> Terms:
    """Eq. 4: α Σ_k (T log ∫ exp(Q_k / T) − Q_k(s_t, a_t)), and eq. 30 of α."""
    terms = sac(w, t, b, BACKUPS[w.options["backup"]])
    s, online = w.know("sac", lambda: SacWindow(w)), w.algorithm._critics.online
    temperature = w.options["cql_temperature"]
    allowed = [j for j, p in enumerate(w.policy(t).joint_probs(b)) if p > 0]
    gaps = []
    for k, taken in enumerate(w.q(online, t, b)):
        total, samples = _zeros(), cql_samples(s, t, b)
        for kind, vector, density in samples:
            q = w.know(("cql", t, kind), lambda v=vector: w.values(online, t, v))
            values = s.scalar(q[b, k, allowed]) / temperature
            total = total + values.exp().sum() / density
        gaps.append(temperature * (total / len(samples)).log() - s.scalar(taken))
    gap = torch.stack(gaps)
    conservative, of_alpha = conservative_losses(w, gap.sum(), gap.mean())
    parts = {**terms.parts, "conservative_loss": conservative, "gap": gap.mean()}
    return Terms(terms.loss + conservative + of_alpha, parts, terms.td_error)


def conservative_losses(w: Window, total: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """α times the gaps, and −log α (gap − τ) where α is learnt."""
    threshold = w.options.get("cql_threshold")
    if threshold is None:
        return w.options["cql_alpha"] * total, _zeros()
    log_alpha = w.algorithm._conservative_weight._log_alpha
    return log_alpha.exp().detach() * total, -log_alpha * (gap.detach() - threshold)


def cql_samples(s: SacWindow, t: int, b: int) -> Any:
    """Kind, vectors of all rows, and the density of that of row b.

    Of π(·|s_t), of π at the step that is bootstrapped from, and uniform ones.
    """
    if s.w.vector is None:
        return [("none", None, 1.0)]
    vector, log_prob = s.draw(t)
    # The box is five times as large as that of the vectors.
    samples = [("now", vector.detach(), 5 * log_prob[b].detach().exp())]
    if not s.w.case.memory:
        drawn = [s.draw(s.w.n_step(t, row)[2]) for row in range(B)]
        vector = torch.stack([v[row] for row, (v, _) in enumerate(drawn)])
        log_prob = drawn[b][1][b]
        samples.append(("next", vector.detach(), 5 * log_prob.detach().exp()))
    samples.append(("uniform", 2 * torch.tensor(UNIFORM[:2]).expand(B, 2) - 1, 0.25))
    return samples * s.w.options["num_sampled_actions"]


# DDPG (arXiv:1509.02971), TD3 (arXiv:1802.09477), TD3+BC (arXiv:2106.06860)


def deterministic(
    w: Window, critic: Any, policy: Any, t: int, noise: Any = None
) -> Tensor:
    """Q_k(s_t, μ(s_t)) of all rows, [B, n, D]."""

    def compute() -> Tensor:
        action = w.over_time(policy)[t]
        if noise is not None:
            action = (action + noise).clamp(-1, 1)
        return w.values(critic, t, action)[:, :, 0]

    return w.know((id(critic), id(policy), "deterministic", t), compute)


def ddpg(w: Window, t: int, b: int) -> Terms:
    """Eq. 4 and 6."""
    return actor_and_critics(w, t, b, noise=None)


def td3(w: Window, t: int, b: int) -> Terms:
    """The target is that of a noisy action, eq. 14."""
    noise = w.options["target_noise_std"] * torch.tensor(NORMAL)
    clip = w.options["target_noise_clip"]
    return actor_and_critics(w, t, b, noise.clamp(-clip, clip))


def actor_and_critics(w: Window, t: int, b: int, noise: Any) -> Terms:
    algorithm = w.algorithm
    online, target = algorithm._critics.online, algorithm._critics.target
    reward, discount, end = w.n_step(t, b)

    def value(t: int, b: int) -> Tensor:
        next_q = deterministic(w, target, algorithm._target_policy, t, noise)[b]
        return w.smallest(next_q)

    q, has_lambda = w.q(online, t, b), "td_lambda" in w.options
    following = mixed_value(w, value, end, b) if has_lambda else value(end, b)
    terms = squared_errors(w, q, reward + discount * following)
    action_value = deterministic(w, w.frozen(online), algorithm._policy, t)[b, 0]
    actor_loss = -w.scalar(action_value)
    action = w.over_time(algorithm._policy)[t][b]
    actor_loss = actor_loss + w.options.get("action_l2", 0.0) * action.square().sum()
    parts = {**terms.parts, "actor_loss": actor_loss}
    return Terms(terms.loss + actor_loss, parts, terms.td_error)


def td3_bc(w: Window, t: int, b: int) -> Terms:
    """Eq. 3 and 5: λ Q with λ = α / mean |Q|, and the distance from what was done."""
    plain = td3(w, t, b)
    sizes = w.know(
        "sizes", lambda: [td3(w, *step).parts["actor_loss"].abs() for step in w.valid()]
    )
    scale = w.options["bc_alpha"] / torch.stack(sizes).mean().detach()
    actor_loss = scale * plain.parts["actor_loss"]
    action = w.over_time(w.algorithm._policy)[t][b]
    bc_loss = (action - w.vector[b, t + 1]).square().mean()
    critic_loss = plain.parts["critic_loss"]
    parts = {"critic_loss": critic_loss, "actor_loss": actor_loss, "bc_loss": bc_loss}
    return Terms(critic_loss + actor_loss + bc_loss, parts, plain.td_error)


# Regression: BC, IQL (arXiv:2110.06169), AWAC (arXiv:2006.09359)


def log_prob(w: Window, t: int, b: int) -> Tensor:
    """log π(a_t|s_t); 0 where the mask rules a_t out."""
    if not w.allows_taken(t, b):
        return _zeros()
    return w.policy(t).log_prob(b, w.taken(t, b), w.move(t, b))


def bc(w: Window, t: int, b: int) -> Terms:
    imitation_loss, entropy = -log_prob(w, t, b), w.policy(t).entropy(b)
    loss = imitation_loss - w.options["entropy_regularization"] * entropy
    surprise = (1 + imitation_loss.detach().double().exp()).log()
    return Terms(loss, {"imitation_loss": imitation_loss, "entropy": entropy}, surprise)


def bc_deterministic(w: Window, t: int, b: int) -> Terms:
    action = w.over_time(w.algorithm._policy)[t][b]
    loss = (action - w.vector[b, t + 1]).square().mean()
    return Terms(loss, {"imitation_loss": loss}, loss.detach().sqrt())


def iql(w: Window, t: int, b: int) -> Terms:
    """Eq. 5, 6 and 7."""
    algorithm = w.algorithm
    network = getattr(algorithm._value_network, "_network", algorithm._value_network)

    def value(t: int) -> Tensor:
        features = w.over_time(network, network.encode)[t]
        return w.know(("V", t), lambda: network.evaluate(features, None)[:, 0])[
            b
        ].reshape(-1)

    target_q = w.smallest(w.q(algorithm._critics.target, t, b)).detach()
    advantage = w.scalar(target_q - value(t)).detach()
    share = w.options["expectile"] if advantage >= 0 else 1 - w.options["expectile"]
    value_loss = share * (target_q - value(t)).square().sum()
    reward, discount, end = w.n_step(t, b)
    q = w.q(algorithm._critics.online, t, b)
    terms = squared_errors(w, q, reward + discount * value(end))
    weight = (w.options["beta"] * advantage).exp().clamp(max=w.options["max_weight"])
    actor_loss = -weight * log_prob(w, t, b)
    parts = {**terms.parts, "value_loss": value_loss, "actor_loss": actor_loss}
    return Terms(terms.loss + value_loss + actor_loss, parts, terms.td_error)


def awac(w: Window, t: int, b: int) -> Terms:
    algorithm = w.algorithm
    online, target = algorithm._critics.online, algorithm._critics.target

    def value(critic: Any, t: int) -> Tensor:
        """E_π min_k Q_k(s, ·) of a sample between its bounds."""

        def compute() -> Tensor:
            box, vector = w.policy(t).box, None
            if box is not None:
                move = box.loc + box.scale * torch.tensor(NORMAL)
                vector = torch.stack([move[:, 0], move[:, 1] / 5 - 1], -1).clamp(-1, 1)
            return w.values(critic, t, vector)

        values = w.know((id(critic), "of sample", t), compute)[b]
        probs = w.policy(t).joint_probs(b)
        return sum(p * w.smallest(values[:, j]) for j, p in enumerate(probs)).detach()

    q = w.q(online, t, b)
    advantage = w.scalar(w.smallest(q.detach()) - value(online, t))
    weight = (advantage / w.options["temperature"]).exp()
    weight = weight.clamp(max=w.options["max_weight"])
    actor_loss = -weight * log_prob(w, t, b)
    reward, discount, end = w.n_step(t, b)
    terms = squared_errors(w, q, reward + discount * value(target, end))
    parts = {**terms.parts, "actor_loss": actor_loss, "advantage": advantage}
    return Terms(terms.loss + actor_loss, parts, terms.td_error)


# DQN (van Hasselt et al., arXiv:1509.06461) and its family


def best(w: Window, values: Tensor, t: int, b: int) -> list[int]:
    """Of each component [C, A], the largest value that is allowed."""
    found = []
    for row, allowed in zip(values, w.allowed(t, b), strict=True):
        places = [a for a, ok in enumerate(allowed) if ok] or [0]
        found.append(max(places, key=lambda a, row=row: row[a].item()))
    return found


def of_components(w: Window, t: int, b: int, next_values: list, bonus: list) -> Terms:
    """The mean Huber loss of y_c − Q_c(s_t, a_t)."""
    reward, discount, _ = w.n_step(t, b)
    q = w.components(w.algorithm._q_network, t, b)
    errors = []
    for c, taken in enumerate(w.taken(t, b)):
        y = w.scalar(reward) + bonus[c] + discount * next_values[c]
        errors.append(torch.as_tensor(y).detach() - q[c, taken])
    loss = torch.stack([huber(error) for error in errors]).mean()
    size = torch.stack([error.abs() for error in errors]).mean().detach()
    return Terms(loss, {"td_error": size}, size)


def dqn(w: Window, t: int, b: int) -> Terms:
    """y = G + Γ Q(s', argmax_a Q(s', a; θ); θ⁻)."""
    algorithm = w.algorithm
    *_, end = w.n_step(t, b)
    target = w.components(algorithm._target_q_network, end, b)
    chooser = (
        w.components(algorithm._q_network, end, b) if w.options["double"] else target
    )
    choice = best(w, chooser, end, b)
    return of_components(
        w, t, b, [target[c, a] for c, a in enumerate(choice)], [0.0] * 2
    )


def r2d2(w: Window, t: int, b: int) -> Terms:
    """Kapturowski et al. 2019: y = h(G + Γ h⁻¹(Q(s', a*; θ⁻))), squared."""
    algorithm, epsilon = w.algorithm, 1e-3
    reward, discount, end = w.n_step(t, b)
    target = w.components(algorithm._target_q_network, end, b)
    q = w.components(algorithm._q_network, t, b)
    choice = best(w, w.components(algorithm._q_network, end, b), end, b)
    errors = []
    for c, taken in enumerate(w.taken(t, b)):
        x = target[c, choice[c]].item()
        root = math.sqrt(1 + 4 * epsilon * (abs(x) + 1 + epsilon))
        inverse = math.copysign(((root - 1) / (2 * epsilon)) ** 2 - 1, x)
        y = w.scalar(reward).item() + discount * inverse
        y = math.copysign(math.sqrt(abs(y) + 1) - 1, y) + epsilon * y
        errors.append(y - q[c, taken])
    loss = torch.stack([error**2 for error in errors]).mean()
    size = torch.stack([error.abs() for error in errors]).mean().detach()
    return Terms(loss, {"td_error": size}, size)


def soft_policy(
    w: Window, t: int, b: int, c: int
) -> tuple[list[float], dict[int, float]]:
    """Q(s_t, ·; θ⁻) of a component, and log π of the values that are allowed."""
    tau = w.options["munchausen_temperature"]
    q = w.components(w.algorithm._target_q_network, t, b)[c].tolist()
    allowed = [a for a, ok in enumerate(w.allowed(t, b)[c]) if ok] or list(
        range(SIZES[w.case.action][c])
    )
    largest = max(q[a] for a in allowed)
    total = sum(math.exp((q[a] - largest) / tau) for a in allowed)
    return q, {a: (q[a] - largest) / tau - math.log(total) for a in allowed}


def munchausen(w: Window, t: int, b: int) -> Terms:
    """Vieillard et al. (arXiv:2007.14430): α [τ log π(a_t|s_t)]_{l₀}^0 is added."""
    options = w.options
    tau, *_, end = options["munchausen_temperature"], *w.n_step(t, b)
    bonus, following = [], []
    for c, taken in enumerate(w.taken(t, b)):
        _, log_pi = soft_policy(w, t, b, c)
        added = tau * log_pi.get(taken, -math.inf)
        if taken not in log_pi:  # ruled out: its own value against the others
            q, _ = soft_policy(w, t, b, c)
            soft = tau * math.log(sum(math.exp(q[a] / tau) for a in log_pi))
            added = q[taken] - soft
        bonus.append(
            options["munchausen_alpha"]
            * min(0.0, max(options["munchausen_clipping"], added))
        )
        q, log_pi = soft_policy(w, end, b, c)
        following.append(sum(math.exp(p) * (q[a] - tau * p) for a, p in log_pi.items()))
    return of_components(w, t, b, following, bonus)


def sarsa(w: Window, t: int, b: int) -> Terms:
    """y = G + Γ Q(s', a'; θ⁻), of what was done; the best one after a time limit."""
    *_, end = w.n_step(t, b)
    target = w.components(w.algorithm._target_q_network, end, b)
    choice = best(w, target, end, b) if w.is_last(end, b) else w.taken(end, b)
    return of_components(
        w, t, b, [target[c, a] for c, a in enumerate(choice)], [0.0] * 2
    )


def expected_sarsa(w: Window, t: int, b: int) -> Terms:
    """y = G + Γ Σ_a π(a|s') Q(s', a; θ⁻), π ε-greedy."""
    *_, end = w.n_step(t, b)
    target = w.components(w.algorithm._target_q_network, end, b)
    epsilon, following = w.options["rollout_epsilon_greedy"], []
    for c, greedy in enumerate(best(w, target, end, b)):
        allowed = [a for a, ok in enumerate(w.allowed(end, b)[c]) if ok] or [0]
        mean = sum(target[c, a] for a in allowed) / len(allowed)
        following.append((1 - epsilon) * target[c, greedy] + epsilon * mean)
    return of_components(w, t, b, following, [0.0] * 2)


def cql_dqn(w: Window, t: int, b: int) -> Terms:
    """DQN, and α (T log Σ_a exp(Q / T) − Q(s_t, a_t)), the mean of the components."""
    terms, temperature = dqn(w, t, b), w.options["cql_temperature"]
    q = w.components(w.algorithm._q_network, t, b)
    gaps = []
    for c, taken in enumerate(w.taken(t, b)):
        allowed = [a for a, ok in enumerate(w.allowed(t, b)[c]) if ok]
        total = sum((q[c, a] / temperature).exp() for a in allowed)
        gaps.append(temperature * total.log() - q[c, taken])
    gap = torch.stack(gaps).mean()
    loss = terms.loss + sum(conservative_losses(w, gap, gap))
    return Terms(loss, {**terms.parts, "gap": gap}, terms.td_error)


def dqfd(w: Window, t: int, b: int) -> Terms:
    """DQN, and of demonstrations λ (max_a (Q(s, a) + l [a ≠ a_E]) − Q(s, a_E))."""
    terms, q = dqn(w, t, b), w.components(w.algorithm._q_network, t, b)
    margins = []
    for c, taken in enumerate(w.taken(t, b)):
        rivals = [
            q[c, a] + (0.0 if a == taken else w.options["margin"])
            for a, ok in enumerate(w.allowed(t, b)[c])
            if ok or a == taken
        ]
        margins.append(max(rivals) - q[c, taken])
    margin_loss = (b % 2) * torch.stack(margins).mean()
    loss = terms.loss + w.options["margin_weight"] * margin_loss
    return Terms(loss, {**terms.parts, "margin_loss": margin_loss}, terms.td_error)


# On-policy: A2C, PPO (arXiv:1707.06347), IMPALA (arXiv:1802.01561)


def value_at(w: Window, t: int, b: int) -> Tensor:
    """V(s_t), [D]."""
    return w.over_time(w.algorithm._value_network)[t][b].reshape(-1)


def gae(w: Window, values: Any, lambda_: float) -> dict[tuple[int, int], Tensor]:
    """A_t = δ_t + γ λ A_{t+1}, [D]; 0 at an end (arXiv:1506.02438, eq. 16)."""
    found = {}
    for b in range(B):
        later = torch.zeros(w.case.dims)
        for t in reversed(range(T - 1)):
            if w.is_last(t, b):
                later = torch.zeros(w.case.dims)
            else:
                gamma = GAMMA * w.steps.discount[b, t + 1].item()
                delta = w.reward(t + 1, b) + gamma * values(t + 1, b) - values(t, b)
                later = (delta + gamma * lambda_ * later).detach()
            found[t, b] = later
    return found


def normalized(w: Window, advantages: dict) -> dict:
    """To mean 0 and deviation 1 over the steps that are trained, weighted."""
    scalars = {step: w.scalar(advantages[step]) for step in w.valid()}
    if not w.options["normalize_advantages"]:
        return scalars
    numbers = torch.stack(list(scalars.values()))
    mean, std = numbers.mean(), numbers.std(correction=0)
    return {step: (a - mean) / std for step, a in scalars.items()}


def actor_critic(w: Window, t: int, b: int, advantage: Tensor, target: Tensor) -> Terms:
    policy = w.policy(t)
    policy_loss = -advantage * policy.log_prob(b, w.taken(t, b), w.move(t, b))
    value_loss = (target - value_at(w, t, b)).square().sum()
    return weighted(w, policy_loss, value_loss, policy.entropy(b))


def weighted(
    w: Window, policy_loss: Tensor, value_loss: Tensor, entropy: Tensor
) -> Terms:
    loss = (
        policy_loss
        + w.options["value_loss_weight"] * value_loss
        - w.options["entropy_regularization"] * entropy
    )
    parts = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
    return Terms(loss, parts)


def a2c(w: Window, t: int, b: int) -> Terms:
    """−A log π(a|s) + c_v (R − V)² − c_e H."""
    lambda_ = w.options["td_lambda"]

    def value(t: int, b: int) -> Tensor:
        return value_at(w, t, b).detach()

    estimates = w.know("gae", lambda: gae(w, value, lambda_))
    target = estimates[t, b] + value(t, b)
    advantages = w.know("advantages", lambda: normalized(w, estimates))
    return actor_critic(w, t, b, advantages[t, b], target)


def ppo(w: Window, t: int, b: int) -> Terms:
    """Eq. 9, with A, R and π_old from before the updates."""
    old_log_prob, old_value = w.old[t, b]
    lambda_ = w.options["td_lambda"]
    estimates = w.know("gae", lambda: gae(w, lambda t, b: w.old[t, b][1], lambda_))
    advantage = w.know("advantages", lambda: normalized(w, estimates))[t, b]
    target, policy, value = estimates[t, b] + old_value, w.policy(t), value_at(w, t, b)
    ratio = (policy.log_prob(b, w.taken(t, b), w.move(t, b)) - old_log_prob).exp()
    epsilon = w.options["clip_epsilon"]
    policy_loss = -torch.minimum(
        ratio * advantage, ratio.clamp(1 - epsilon, 1 + epsilon) * advantage
    )
    value_loss = (value - target).square()
    clip = w.options.get("value_clip")
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        value_loss = torch.maximum(value_loss, (near - target).square())
    return weighted(w, policy_loss, value_loss.sum(), policy.entropy(b))


def impala(w: Window, t: int, b: int) -> Terms:
    """V-trace: eq. 1 by the recursion of Remark 1, and min(ρ̄, π/μ) A."""
    targets, advantages, weights = w.know("vtrace", lambda: vtrace(w))
    scaled = w.know("advantages", lambda: normalized(w, advantages))
    return actor_critic(w, t, b, weights[t, b] * scaled[t, b], targets[t, b])


def vtrace(w: Window) -> tuple[dict, dict, dict]:
    names = "td_lambda", "rho_clip", "c_clip"
    lambda_, rho_clip, c_clip = (w.options[name] for name in names)
    targets, advantages, weights = {}, {}, {}
    for b in range(B):
        v = [value_at(w, t, b).detach() for t in range(T)]
        later = v[T - 1]
        for t in reversed(range(T - 1)):
            ratio, target, advantage = _zeros(), v[t], torch.zeros(w.case.dims)
            if not w.is_last(t, b):
                log_prob = w.policy(t).log_prob(b, w.taken(t, b), w.move(t, b))
                ratio = (log_prob - w.old[t, b][0]).exp().detach()
                gamma = GAMMA * w.steps.discount[b, t + 1].item()
                delta = w.reward(t + 1, b) + gamma * v[t + 1] - v[t]
                trace = lambda_ * ratio.clamp(max=c_clip) * (later - v[t + 1])
                target = v[t] + ratio.clamp(max=rho_clip) * delta + gamma * trace
                bootstrap = lambda_ * later + (1 - lambda_) * v[t + 1]
                advantage = w.reward(t + 1, b) + gamma * bootstrap - v[t]
            later = target
            targets[t, b], advantages[t, b] = target, advantage
            weights[t, b] = ratio.clamp(max=rho_clip)
    return targets, advantages, weights
