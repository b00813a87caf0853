"""A planar robot arm with two cameras, and an expert that picks up a block with it."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np

from rlds2reverb.types.episodes import from_transitions

#: Lengths of both links, and of half the field of view of each camera.
LINKS, TOP_VIEW, WRIST_VIEW = (0.6, 0.4), 1.1, 0.3
#: Largest rotation of a joint in one step, in degrees, and its standard deviation around what was commanded.
MAX_TURN, TURN_NOISE = 4.0, 0.5
#: Width of the open gripper and of the block, and how far it opens or closes in one step, in mm.
OPEN, BLOCK, FINGER_SPEED = 40.0, 20.0, 10.0
#: How close the gripper must be to the middle of the block.
REACH = 0.06
SIZE, MAX_STEPS = 32, 60


class Arm(gymnasium.Env):
    """Two joints and a gripper must pick up a block, whose place only the cameras show.

    Observation: the angles of the joints in degrees and the opening of the gripper in mm, and images of a camera above
    the table and of one at the wrist, which turns with the gripper. Action: the rotations of both joints in degrees,
    and the gripper (-1 opens it, 1 closes it). The episode ends with reward 1 when the gripper holds the block.
    """

    observation_space = gymnasium.spaces.Dict(
        {
            "state": gymnasium.spaces.Box(-360, 360, (3,), np.float32),
            "images": gymnasium.spaces.Dict(
                {name: gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8) for name in ("top", "wrist")}
            ),
        }
    )
    action_space = gymnasium.spaces.Box(np.float32([-MAX_TURN, -MAX_TURN, -1]), np.float32([MAX_TURN, MAX_TURN, 1]))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        """Puts the block to a random place."""
        super().reset(seed=seed)
        radius, angle = self.np_random.uniform(0.45, 0.9), self.np_random.uniform(-1.4, 1.4)
        self.block = radius * np.array([np.cos(angle), np.sin(angle)])
        self.joints = self.np_random.uniform([-20, 40], [20, 80])
        self.opening, self.num_steps = OPEN, 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        """Turns the joints, and opens or closes the gripper."""
        turn = np.clip(action[:2], -MAX_TURN, MAX_TURN) + self.np_random.normal(0, TURN_NOISE, 2)
        self.joints = np.clip(self.joints + turn, -170, 170)
        is_near = np.linalg.norm(self._points()[2] - self.block) < REACH
        self.opening = np.clip(self.opening - FINGER_SPEED * np.sign(action[2]), BLOCK if is_near else 0, OPEN)
        self.num_steps += 1
        is_held = bool(is_near and self.opening == BLOCK)
        return self._observe(), float(is_held), is_held, not is_held and self.num_steps == MAX_STEPS, {}

    def demonstrate(self, seed: int) -> dict[str, Any]:
        """Returns an episode of the expert, which knows where the block is."""
        observation, _ = self.reset(seed=seed)
        observations, actions, rewards, is_over = [observation], [], [], False
        while not is_over:
            actions.append(self._choose())
            observation, reward, terminated, truncated, _ = self.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
            is_over = terminated or truncated
        stacked = {
            "state": np.stack([one["state"] for one in observations]),
            "images": {name: np.stack([one["images"][name] for one in observations]) for name in ("top", "wrist")},
        }
        return from_transitions(stacked, np.stack(actions), rewards=np.float32(rewards), terminated=terminated)

    def _choose(self) -> np.ndarray:
        """Returns the expert's action: both joints move at once, and then the gripper closes."""
        (upper, lower), distance = LINKS, np.linalg.norm(self.block)
        elbow = np.arccos(np.clip((distance**2 - upper**2 - lower**2) / (2 * upper * lower), -1, 1))
        shoulder = np.arctan2(*self.block[::-1]) - np.arctan2(lower * np.sin(elbow), upper + lower * np.cos(elbow))
        missing = np.degrees([shoulder, elbow]) - self.joints
        turn = missing * min(1, MAX_TURN / max(np.abs(missing).max(), 1e-6))
        is_near = np.linalg.norm(self._points()[2] - self.block) < REACH / 2
        return np.float32([*turn, 1 if is_near else -1])

    def _points(self) -> np.ndarray:
        """Returns the shoulder, the elbow and the gripper, [3, 2]."""
        angles = np.radians(np.cumsum(self.joints))
        steps = np.array(LINKS)[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        return np.concatenate([np.zeros((1, 2)), np.cumsum(steps, axis=0)])

    def _observe(self) -> Any:
        state = np.float32([*self.joints, self.opening])
        tip, angle = self._points()[2], np.radians(self.joints.sum())
        axes = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        top = self._draw(np.zeros(2), np.eye(2), TOP_VIEW)
        return {"state": state, "images": {"top": top, "wrist": self._draw(tip, axes, WRIST_VIEW)}}

    def _draw(self, middle: np.ndarray, axes: np.ndarray, view: float) -> np.ndarray:
        """Returns an image [SIZE, SIZE, 3] of the arm and the block, seen in a square with these axes."""
        places = (np.arange(SIZE) + 0.5) / SIZE * 2 - 1
        grid = np.stack(np.meshgrid(places, places), axis=-1) * view @ axes + middle
        pixel = 2 * view / SIZE
        image = np.full((SIZE, SIZE, 3), 40.0)

        def paint(distance: np.ndarray, radius: float, color: tuple[int, int, int]) -> None:
            share = np.clip((radius - distance) / pixel + 0.5, 0, 1)[..., None]
            image[:] = image * (1 - share) + np.array(color) * share

        paint(np.linalg.norm(grid - self.block, axis=-1), 0.09, (240, 150, 30))
        points = self._points()
        for start, end in itertools.pairwise(points):
            along = np.clip((grid - start) @ (end - start) / ((end - start) ** 2).sum(), 0, 1)
            paint(np.linalg.norm(grid - start - along[..., None] * (end - start), axis=-1), 0.04, (120, 160, 220))
        angle = np.radians(self.joints.sum())
        side = np.array([-np.sin(angle), np.cos(angle)]) * self.opening / OPEN * 0.1
        for finger in (points[2] + side, points[2] - side):
            paint(np.linalg.norm(grid - finger, axis=-1), 0.035, (230, 230, 230))
        return image.astype(np.uint8)
