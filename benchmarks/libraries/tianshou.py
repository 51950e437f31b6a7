"""Tianshou 2, through its procedural interface.

Deviations: its DQN takes no gradient-norm bound, so nothing is clipped there, and it evaluates the
online network on the next observations also where the target network alone chooses; its QR-DQN
lets the online network choose, as double Q-learning does. Epsilon is at its final value as soon as
the random play is over. As they do by themselves, its trainers look for NaNs in the whole buffer
after each collection.

Its DRQN is its DQN with its recurrent network, without an activation before the LSTM, and a buffer
that stacks observations. A sequence starts from zeros and ends with the drawn transition, the only
one that is learned from; where an episode is shorter, its first observation is repeated. The search
for NaNs stacks everything stored, states too, and is most of its time: that grows with the buffer.
It has no recurrent PPO and no TQC. The critics of its SAC are two networks; its REDQ averages the
loss over the critics and asks all target critics before it takes a subset of their values.
"""

from __future__ import annotations

from typing import Any

from benchmarks.probe import NotOffered, Probe, main
from benchmarks.workloads import (
    DQNWorkload,
    DRQNWorkload,
    PPOWorkload,
    QRDQNWorkload,
    REDQWorkload,
    SACWorkload,
    Workload,
)


def parts(
    w: Workload, probe: Probe, *, count_optimizers: bool = True
) -> tuple[Any, Any, dict[str, Any]]:
    """Synchronous environments, their action space, and what every trainer is told."""
    import gymnasium as gym
    from tianshou.env import DummyVectorEnv

    if count_optimizers:
        probe.count_torch_optimizers()
    envs = DummyVectorEnv([lambda: gym.make(w.env_id) for _ in range(w.num_envs)])
    params = {
        "max_epochs": 1,
        "epoch_num_steps": w.budget,
        "collection_step_num_env_steps": w.cycle[0],
        "batch_size": w.batch_size,
        "test_collector": None,
        "verbose": False,
        "show_progress": False,
    }
    return envs, gym.make(w.env_id).action_space, params


def q_network(w: DQNWorkload) -> Any:
    """Its network of linear layers, or with a memory the one it has for that."""
    from tianshou.utils.net.common import Net, Recurrent

    shape = {"state_shape": w.obs_dim, "action_shape": w.num_actions}
    if isinstance(w, DRQNWorkload):
        if w.hidden != (w.core_size,):
            raise NotOffered(
                f"Tianshou's recurrent network has one layer as wide as the LSTM, {w.core_size}, "
                f"before it, the workload {w.hidden}"
            )
        return Recurrent(layer_num=1, hidden_layer_size=w.core_size, **shape)
    return Net(hidden_sizes=w.hidden, num_atoms=w.outputs // w.num_actions, **shape)


def learn_dqn(
    algorithm_class: Any, policy_class: Any, w: DQNWorkload, probe: Probe, **own: Any
) -> None:
    """Train DQN or a relative; the target network is copied after a number of gradient steps."""
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OffPolicyTrainerParams

    envs, action_space, params = parts(w, probe)
    net = q_network(w)
    algorithm = algorithm_class(
        policy=policy_class(model=net, action_space=action_space, eps_training=w.final_epsilon),
        optim=AdamOptimizerFactory(lr=w.learning_rate),
        gamma=w.gamma,
        target_update_freq=max(1, w.target_every // w.steps_per_update),
        **own,
    )
    length = w.sequence_length if isinstance(w, DRQNWorkload) else 1
    buffer = VectorReplayBuffer(w.buffer_size, w.num_envs, stack_num=length)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=w.learning_starts, random=True)
    params["update_step_num_gradient_steps_per_sample"] = 1 / w.steps_per_update
    algorithm.run_training(OffPolicyTrainerParams(training_collector=collector, **params))


def dqn(w: DQNWorkload, probe: Probe) -> None:
    """DQN; with a memory if the workload has one."""
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy

    learn_dqn(DQN, DiscreteQLearningPolicy, w, probe, is_double=False, huber_loss_delta=1.0)


def qr_dqn(w: QRDQNWorkload, probe: Probe) -> None:
    """QR-DQN."""
    from tianshou.algorithm import QRDQN
    from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy

    learn_dqn(QRDQN, QRDQNPolicy, w, probe, num_quantiles=w.num_quantiles)


def soft_critic(w: SACWorkload, **layers: Any) -> Any:
    """A critic, or with another kind of layer several side by side."""
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousCritic

    sizes = {"state_shape": w.obs_dim, "action_shape": w.num_actions, "hidden_sizes": w.hidden}
    body = Net(**sizes, concat=True, **layers)
    return ContinuousCritic(preprocess_net=body, flatten_input=not layers, **layers)


def learn_sac(
    algorithm_class: Any, policy_class: Any, w: SACWorkload, probe: Probe, **own: Any
) -> None:
    """Train SAC or REDQ, with a learned temperature."""
    from tianshou.algorithm.modelfree.sac import AutoAlpha
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic

    envs, action_space, params = parts(w, probe, count_optimizers=False)
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=w.obs_dim, hidden_sizes=w.hidden),
        action_shape=w.num_actions,
        unbounded=True,
        conditioned_sigma=True,
    )
    adam = AdamOptimizerFactory(lr=w.learning_rate)
    algorithm = algorithm_class(
        policy=policy_class(actor=actor, action_space=action_space),
        policy_optim=adam,
        critic_optim=adam,
        tau=w.tau,
        gamma=w.gamma,
        alpha=AutoAlpha(-float(w.num_actions), 0.0, adam),
        **own,
    )
    algorithm._update_with_batch = probe.counting(algorithm._update_with_batch)
    collector = Collector(algorithm, envs, VectorReplayBuffer(w.buffer_size, w.num_envs))
    collector.reset()
    collector.collect(n_step=w.learning_starts, random=True)
    params["update_step_num_gradient_steps_per_sample"] = w.updates_per_step
    algorithm.run_training(OffPolicyTrainerParams(training_collector=collector, **params))


def sac(w: SACWorkload, probe: Probe) -> None:
    """SAC."""
    from tianshou.algorithm import SAC
    from tianshou.algorithm.modelfree.sac import SACPolicy

    critics = {"critic": soft_critic(w), "critic2": soft_critic(w)}
    learn_sac(SAC, SACPolicy, w, probe, **critics)


def redq(w: REDQWorkload, probe: Probe) -> None:
    """REDQ."""
    from tianshou.algorithm import REDQ
    from tianshou.algorithm.modelfree.redq import REDQPolicy
    from tianshou.utils.net.common import EnsembleLinear

    def layer(fan_in: int, fan_out: int) -> Any:
        return EnsembleLinear(w.num_critics, fan_in, fan_out)

    learn_sac(
        REDQ,
        REDQPolicy,
        w,
        probe,
        critic=soft_critic(w, linear_layer=layer),
        ensemble_size=w.num_critics,
        subset_size=w.subset_size,
        actor_delay=w.policy_delay,
    )


def ppo(w: PPOWorkload, probe: Probe) -> None:
    """PPO; values of observations and of their successors are computed after each rollout."""
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
    from torch import nn

    def body() -> Net:
        return Net(state_shape=w.obs_dim, hidden_sizes=w.hidden, activation=nn.Tanh)

    envs, action_space, params = parts(w, probe)
    actor = DiscreteActor(preprocess_net=body(), action_shape=w.num_actions, softmax_output=False)
    algorithm = PPO(
        policy=DiscreteActorPolicy(actor=actor, action_space=action_space),
        critic=DiscreteCritic(preprocess_net=body()),
        optim=AdamOptimizerFactory(lr=w.learning_rate, eps=w.adam_eps),
        eps_clip=w.clip_range,
        vf_coef=w.value_coef,
        ent_coef=0.0,
        max_grad_norm=w.max_grad_norm,
        gae_lambda=w.gae_lambda,
        gamma=w.gamma,
    )
    collector = Collector(algorithm, envs, VectorReplayBuffer(w.cycle[0], w.num_envs))
    params["update_step_num_repetitions"] = w.epochs
    algorithm.run_training(OnPolicyTrainerParams(training_collector=collector, **params))


if __name__ == "__main__":
    packages = ("tianshou", "torch", "gymnasium", "numpy")
    q_learning: dict[str, Any] = {"dqn": dqn, "drqn": dqn, "qr_dqn": qr_dqn}
    main("tianshou", packages, {**q_learning, "sac": sac, "redq": redq, "ppo": ppo})
