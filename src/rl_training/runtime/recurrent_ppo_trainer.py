"""Recurrent PPO's registry entry."""

from dataclasses import replace

from rl_training.config.ppo import RecurrentPPOConfig
from rl_training.runtime import ppo_trainer
from rl_training.runtime.spec import Lazy, trainer

RECURRENT_PPO_SPEC = replace(
    ppo_trainer.PPO_SPEC,
    name="recurrent_ppo",
    title="Recurrent proximal policy optimisation",
    hyper=RecurrentPPOConfig,
    model=Lazy("rl_training.models.cnn.image_networks:recurrent_actor_critic"),
    algorithm=Lazy("rl_training.algorithms.recurrent_ppo:RecurrentPPO"),
)

train_recurrent_ppo = trainer(RECURRENT_PPO_SPEC)
