"""Datasets of which a report is worth looking at: one with pictures, and one whose names and texts mean harm."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import rlds_cli

HOSTILE = "</script><script>globalThis.hurt=1</script><img src=x onerror=globalThis.hurt=2>'\"&<!--"


def reaching(seed: int, *, width: int = 160) -> dict[str, Any]:
    """An arm that brings a block to a circle, seen by a colour camera and a grey one with channels first."""
    rng = np.random.default_rng(seed)
    goal, block, hand = rng.uniform(0.25, 0.75, 2), rng.uniform(0.2, 0.8, 2), np.array([0.5, 0.1])
    steps, holds = int(rng.integers(30, 90)), False
    front, wrist, state, action, reward, texts = [], [], [], [], [], []
    for step in range(steps + 1):
        frame = scene(hand, block, goal, width)
        front.append(np.asarray(frame))
        x, y = (int(v) for v in hand * [width, 0.7 * width])
        wrist.append(np.asarray(frame.convert("L").crop((x - 20, y - 20, x + 20, y + 20)).resize((48, 48)))[None])
        state.append([*hand, *block, *goal, holds])
        if step == steps:
            break
        texts.append("bring it to the circle" if holds else "take the block")
        move = np.clip(4 * ((goal if holds else block) - hand) + rng.normal(0, 0.25, 2), -1, 1)
        action.append([*move, 1.0 if holds else -1.0])
        hand = hand + 0.04 * move
        holds = holds or bool(np.linalg.norm(hand - block) < 0.05)
        block = hand.copy() if holds else block
        reward.append(-np.linalg.norm(block - goal))
    arrived = bool(np.linalg.norm(block - goal) < 0.06)
    observation = {"state": np.array(state, np.float32), "front": np.array(front), "wrist": np.array(wrist)}
    outcome = {"reward": np.array(reward, np.float32), "terminated": arrived, "truncated": not arrived}
    return {
        "observation": observation,
        "action": np.array(action, np.float32),
        "next": outcome,
        "instruction": texts,
    }


def scene(hand: np.ndarray, block: np.ndarray, goal: np.ndarray, width: int) -> Image.Image:
    """One frame, three quarters as high as it is wide."""
    image = Image.new("RGB", (width, width * 3 // 4), (226, 221, 210))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, width * 0.58, width, width), fill=(160, 128, 96))
    (hx, hy), (bx, by), (gx, gy) = ([p[0] * width, p[1] * 0.7 * width] for p in (hand, block, goal))
    draw.ellipse((gx - 9, gy - 9, gx + 9, gy + 9), outline=(40, 140, 80), width=2)
    draw.rectangle((bx - 6, by - 6, bx + 6, by + 6), fill=(178, 58, 100))
    draw.line((width / 2, 0, hx, hy), fill=(60, 70, 90), width=5)
    draw.ellipse((hx - 5, hy - 5, hx + 5, hy + 5), fill=(47, 111, 179))
    return image


def pictures(id: str = "local/reaching", *, episodes: int = 40) -> rlds_cli.Dataset:
    """Episodes of `reaching`; one value of episode 17 is not a number."""

    def made() -> Iterator[dict[str, Any]]:
        for k in range(episodes):
            one = reaching(k)
            if k == 17:
                one["observation"]["state"][12, 3] = np.nan
            yield one

    return rlds_cli.create(id, made(), env_id="Reach-v0", fps=10, force=True)


def recorded(id: str = "local/reaching", *, episodes: int = 40) -> rlds_cli.Dataset:
    """Episodes of `reaching` as a lab records them: JPEG images, a task, sub-tasks, operators, successes."""
    labels: dict[str, list[Any]] = {name: [] for name in ("success", "operator", "task", "subtasks")}

    def made() -> Iterator[dict[str, Any]]:
        for k in range(episodes):
            one = reaching(k, width=320)
            texts, seen = one.pop("instruction"), one["observation"]
            for name in ("front", "wrist"):
                seen[name] = rlds_cli.Frames([_jpeg(image) for image in seen[name]])
            taken = texts.index("bring it to the circle") if "bring it to the circle" in texts else len(texts)
            ranges = [[0, taken, "take the block"], [taken, len(texts), "bring it to the circle"]]
            labels["success"].append(bool(one["next"]["terminated"]) and k % 7 > 0)
            labels["operator"].append(("ada", "grace", "mary")[k % 3])
            labels["task"].append("bring the block to the circle")
            labels["subtasks"].append(json.dumps([r for r in ranges if r[0] < r[1]]))
            yield one

    ds = rlds_cli.create(id, made(), env_id="Reach-v0", fps=10, force=True)
    return ds.label(labels)


RESTS, BLACK, MISSED = (4, 15, 29), (7, 22, 33), (2, 11, 26, 38)  # the ten episodes of `faulty` that have a fault
RESTED = 12  # steps


def faulty(id: str = "local/reaching", *, width: int = 320) -> rlds_cli.Dataset:
    """Forty episodes of `reaching`, ten of which have a fault.

    The arm rests at the begin of three, the camera is black in the second half of three, and in four the block does
    not reach the circle. Nothing but the pictures and the curves says so.
    """

    def made() -> Iterator[dict[str, Any]]:
        for k in range(40):
            one = reaching(k, width=width)
            texts, seen, outcome = one.pop("instruction"), one["observation"], one["next"]
            if k in RESTS:
                for name in seen:
                    seen[name] = np.concatenate([np.repeat(seen[name][:1], RESTED, 0), seen[name]])
                one["action"] = np.concatenate([np.zeros((RESTED, 3), np.float32), one["action"]])
                outcome["reward"] = np.concatenate([np.repeat(outcome["reward"][:1], RESTED), outcome["reward"]])
            if k in BLACK:
                seen["front"][len(texts) // 2 :] = 0
            if k in MISSED:
                steps = min(len(texts) - 1, texts.count("take the block") + 6)
                for name in seen:
                    seen[name] = seen[name][: steps + 1]
                one["action"], outcome["reward"] = one["action"][:steps], outcome["reward"][:steps]
            one["next"] = {"reward": outcome["reward"], "terminated": False, "truncated": True}
            for name in ("front", "wrist"):
                seen[name] = rlds_cli.Frames([_jpeg(image) for image in seen[name]])
            yield one

    return rlds_cli.create(id, made(), env_id="Reach-v0", fps=10, force=True)


def _jpeg(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image[0] if image.shape[0] == 1 else image).save(file, "jpeg", quality=88)
    return file.getvalue()


def hostile(id: str = "local/hostile") -> rlds_cli.Dataset:
    """Names of fields, of the environment and texts that would be HTML or script unescaped; numbers of 64 bits."""
    name = HOSTILE.replace("/", "∕")  # a slash in a name is a level of nesting
    rng = np.random.default_rng(0)

    def made() -> Iterator[dict[str, Any]]:
        for k in range(3):
            yield {
                "observation": {name: rng.normal(size=(21, 2))},
                "action": rng.normal(size=(20, 1)),
                "next": {"reward": np.full(20, np.nan if k == 1 else 1.0), "terminated": True},
                "great": np.full(20, 2**64 - 1, np.uint64),
                f"note {name}": [HOSTILE, "\u2028\u2029\u202e\x00\x1b", *[HOSTILE] * 18],
            }

    return rlds_cli.create(id, made(), env_id=HOSTILE, force=True)
