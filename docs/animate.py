"""Draws the README's moving picture: an agent before and after training, side by side.

rl-training train --config ppo/lunarlander
python docs/animate.py runs/ppo-LunarLander-v3-seed0-... docs/pictures/lunarlander.gif

Needs the extras box2d and report, which brings Pillow.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium as gym
from PIL import Image, ImageDraw

from rl_training import PPO

SEEDS = (0, 1)  # of the episodes that are shown
SIZE = (270, 180)
EVERY = 4  # steps per picture
PAUSE = 12  # pictures for which an episode's end stays
MILLISECONDS = 60
COLOURS = 12


def episode(agent: PPO, seed: int, title: str) -> list[Image.Image]:
    """The pictures of one episode, with title and return so far."""
    env = gym.make(agent.config.env_id, render_mode="rgb_array")
    obs, _ = env.reset(seed=seed)
    pictures, total, steps, done = [], 0.0, 0, False
    while not done:
        action, _ = agent.predict(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, steps, done = total + float(reward), steps + 1, terminated or truncated
        if done or steps % EVERY == 0:
            picture = Image.fromarray(env.render()).resize(SIZE, Image.Resampling.LANCZOS)
            ImageDraw.Draw(picture).text((6, 4), f"{title}: return {total:.0f}", "white")
            pictures.append(picture)
    env.close()
    return pictures + [pictures[-1]] * PAUSE


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    """Two pictures as one, of few colours."""
    joined = Image.new("RGB", (2 * SIZE[0] + 4, SIZE[1]), "white")
    joined.paste(left, (0, 0))
    joined.paste(right, (SIZE[0] + 4, 0))
    return joined.quantize(COLOURS, dither=Image.Dither.NONE)


def main(run: Path, target: Path) -> None:
    """Write the animation of a run."""
    trained = PPO.load(run)
    untrained = PPO(trained.config)
    title = f"after {trained.config.total_timesteps:,} steps"
    pictures = []
    for seed in SEEDS:
        before, after = episode(untrained, seed, "untrained"), episode(trained, seed, title)
        length = max(len(before), len(after))
        rows = [shown + [shown[-1]] * (length - len(shown)) for shown in (before, after)]
        pictures += [beside(*pair) for pair in zip(*rows, strict=True)]
    first, *others = pictures
    target.parent.mkdir(exist_ok=True)
    first.save(target, save_all=True, append_images=others, duration=MILLISECONDS, loop=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
