"""Reinforcement-learning training that is correct, fast, proven and safe to leave running.

from rl_training import DQN

agent = DQN.from_config("dqn/cartpole", seed=1)
agent.learn(progress=True)
"""

from rl_training.exports import lazy

__version__ = "0.2.0"

__all__, __getattr__, __dir__ = lazy(__name__)
