"""Each function of rlds_cli/loader/kernel.c in slow, plain Python: one number after the other, no arrays computed with.

The arithmetic is written anew from its definition. Results agree bit by bit: floats are added up in the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rlds_cli.loader.kernel import OF_PLACE, OF_WINDOW, GoalTable, RowPlace, Value, WindowTable

WORD = 2**64 - 1
BELOW_ONE = 1 - 2.0**-53


@dataclass
class Table:
    """Columns over episodes, and the steps that windows start at: ``number * stride + offset``, padded on a side."""

    start: np.ndarray
    steps: np.ndarray
    transitions: np.ndarray
    observed: np.ndarray
    index: np.ndarray
    stride: int = 1
    offset: int = 0
    pad: str | None = None

    def windows(self):
        """The table that the kernel reads."""
        columns = self.start, self.steps, self.transitions, self.observed
        return WindowTable(*columns, (self.stride, self.offset), self.pad)


@dataclass
class Rule:
    """How goals are drawn, see `rlds_cli.loader.Goals`."""

    current: float
    future: float
    random: float
    log_gamma: float
    horizon: int
    steps: int

    def table(self, limit, anywhere, table):
        """The draw of goals that the kernel makes."""
        shares, reach = (self.current, self.future, self.random), (self.horizon, self.steps, self.log_gamma)
        return GoalTable(shares, reach, table.windows(), limit, anywhere)


def clip(x, low, high):
    """The nearest number in [low, high]; low where there is none."""
    return max(low, min(x, high))


# -- random numbers


def philox(key, counter):
    """Philox 4x64-10: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"."""
    (k0, k1), (a, b, c, d) = key, counter
    for _ in range(10):
        one, two = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = two >> 64 ^ b ^ k0, two & WORD, one >> 64 ^ d ^ k1, one & WORD
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & WORD, (k1 + 0xBB67AE8584CAA73B) & WORD
    return a, b, c, d


def word(seed, key, salt, number):
    """Number ``number`` of a stream: NumPy's Philox counts before it draws."""
    counter = (salt << 64 | (number & WORD) // 4) + 1
    return philox((seed, key), (counter & WORD, counter >> 64 & WORD, 0, 0))[number % 4]


def words(seed, key, salt, first, count):
    return [word(seed, key, salt, first + i) for i in range(count)]


def uniform(seed, key, salt, numbers, scale):
    return [(word(seed, key, salt, i) >> 11) * (scale * 2.0**-53) for i in numbers]


def below(seed, key, salt, numbers, limit):
    return [int(u) for u in uniform(seed, key, salt, numbers, float(limit))]


def scatter(x):
    x = x * 0x9E3779B1 % 2**32
    x ^= x >> 15
    x = x * 0x85EBCA77 % 2**32
    return x ^ x >> 13


def permute(numbers, total, sides, keys):
    """A Feistel network over Z_a x Z_b, walked on where it leaves [0, total)."""
    (a, b), out = sides, []
    for x in numbers:
        x = int(x)
        while True:
            left, right = divmod(x, b)
            for round, key in enumerate(map(int, keys)):
                if round % 2:
                    right = (right + remainder(scatter(left ^ key), b)) % b
                else:
                    left = (left + remainder(scatter(right ^ key), a)) % a
            x = left * b + right
            if x < total:
                break
        out.append(x)
    return out


def remainder(x, m):
    return x % m


# -- tables


def find(bounds, numbers):
    """The interval of each number and its place there: intervals go up to the next bound."""
    interval, within = [], []
    for x in map(int, numbers):
        e = 0
        while int(bounds[e + 1]) <= x:
            e += 1
        interval.append(e)
        within.append(x - int(bounds[e]))
    return interval, within


def fall(ends, u):
    """The first item whose running sum is above the draw; the last one where rounding leaves none."""
    ends, found = [float(x) for x in ends], []
    for x in u:
        at, item = float(x) * ends[-1], 0
        while item < len(ends) - 1 and ends[item] <= at:
            item += 1
        found.append(item)
    return found


class Tree:
    """Masses, and above every eight of them their sum and the smallest; the topmost eight or fewer have none."""

    def __init__(self, masses):
        self.count, self.masses = len(masses), [float(x) for x in masses]

    def levels(self):
        sums, least = [padded(self.masses)], [padded(self.masses)]
        size = self.count
        while size > 8:
            eights = [sums[-1][i : i + 8] for i in range(0, len(sums[-1]), 8)]
            size = len(eights)
            minima = [least[-1][i : i + 8] for i in range(0, len(least[-1]), 8)]
            sums.append(padded([((a + b) + (c + d)) + ((e + f) + (g + h)) for a, b, c, d, e, f, g, h in eights]))
            least.append(padded([min((x for x in m if x > 0), default=math.inf) for m in minima]))
        return sums, least

    def top(self):
        sums, least = self.levels()
        return added(sums[-1])[-1], min((x for x in least[-1] if x > 0), default=math.inf)

    def find(self, u):
        """Go down by halves of eight, of four and of two; back to the last mass where rounding led past it."""
        sums, _ = self.levels()
        sizes = [math.ceil(self.count / 8**level) for level in range(len(sums))]
        found = []
        for x in u:
            at, node = float(x) * self.top()[0], 0
            for level, size in zip(reversed(sums), reversed(sizes), strict=True):
                a, b, c, d, *_ = eight = level[8 * node : 8 * node + 8]
                child = 0
                if at >= (half := (a + b) + (c + d)):
                    at, child = at - half, 4
                if at >= (quarter := eight[child] + eight[child + 1]):
                    at, child = at - quarter, child + 2
                if at >= (eighth := eight[child]):
                    at, child = at - eighth, child + 1
                node = min(8 * node + child, size - 1)
            found.append(max((i for i in range(node + 1) if self.masses[i] > 0), default=node))
        return found

    def weigh(self, numbers, beta):
        total, least = self.top()
        chance = [self.masses[i] / total for i in numbers]
        return chance, [math.pow(least / self.masses[i], beta) for i in numbers]

    def update(self, numbers, priorities, eps, alpha):
        for number, priority in zip(numbers, priorities, strict=True):
            self.masses[number] = math.pow(priority + eps, alpha)


def padded(values):
    return values + [0.0] * (-len(values) % 8)


def added(values):
    """Running sums, from zero on."""
    sums = [0.0]
    for x in values:
        sums.append(sums[-1] + x)
    return sums


# -- gather


def first_step(table, number):
    """The first step of a window, in numbers of 64 bits."""
    return (int(number) * table.stride + table.offset + 2**63) % 2**64 - 2**63


class Entry:
    """One step of one sample: where it stands, and whether it is inside its episode."""

    def __init__(self, table, episode, number, span, sample, within, length):
        self.e, self.sample, self.span = int(episode), sample, 1 if span is None else int(span)
        self.start, self.steps = int(table.start[self.e]), int(table.steps[self.e])
        first = first_step(table, number)
        self.step, self.real = clip(first + within, 0, self.steps - 1), 0 <= first + within < self.steps
        if length and table.pad:
            there = [at for at in range(first, first + length) if 0 <= at < self.steps]
            there = there or [clip(first, 0, self.steps - 1)]
            at = within - (length - len(there) if table.pad == "left" else 0)
            self.step, self.real = there[clip(at, 0, len(there) - 1)], 0 <= at < len(there)

    def neighbour(self, amount):
        return self.step + amount + (self.span - 1 if amount > 0 else 0)


def row_of(entry, output, given, offset):
    """The row that an output reads, and whether its place is inside the episode."""
    first, place = entry.start, output.place
    if place is RowPlace.HERE:
        return first + entry.step, True
    if place is RowPlace.LAST:
        return first + entry.step + entry.span - 1, True
    if place is RowPlace.NEIGHBOUR:
        at = entry.neighbour(output.amount)
        return first + clip(at, 0, entry.steps - 1), 0 <= at < entry.steps
    if place is RowPlace.OFFSETS:
        at, limit = entry.step + offset, int(output.limit[entry.e])
        return first + clip(at, 0, limit - 1), 0 <= at < limit
    if place is RowPlace.GIVEN:
        return None if given is None else int(given[entry.sample]), True  # None: the place is not read
    return {RowPlace.EPISODE: entry.e, RowPlace.SPAN: entry.span, RowPlace.SAMPLE: entry.sample}[place], True


def value_of(table, entry, output, row, real, given):
    """The value of an output, an array of its shape or a number, before it is scaled."""
    value, e = output.value, entry.e
    if value is Value.ROW:
        return row
    if value is Value.INSIDE:
        if output.place is RowPlace.OFFSETS:
            return real
        return (entry.real or not output.mask & OF_WINDOW) and (real or not output.mask & OF_PLACE)
    if value is Value.STEP:
        return entry.step
    if value is Value.INDEX:
        return int(table.index[e]) + entry.step if entry.step < table.transitions[e] else -1
    if value is Value.OBSERVED:
        return entry.step + entry.span < int(table.observed[e])
    if value is Value.DISTANCE:
        return max(-1, int(given[entry.sample]) - entry.step)
    if value is Value.ZERO:
        return 0
    source = given if output.source is None else output.source
    if value is Value.EITHER:
        return bool(output.source[row + output.shift]) or bool(output.other[row + output.shift])
    if value is Value.SUM:
        return summed(output, row, entry.span)
    return source[row + output.shift]  # COPY, NARROW, WIDEN: the cast is that of the array written to


def summed(output, row, span):
    """Of each number of a reward: gamma**j times that of step j, added up one after the other in float64."""
    rows = [np.asarray(output.source[row + j]).reshape(-1) for j in range(span)]
    totals = []
    for k in range(len(rows[0])):
        total = 0.0
        for j in range(span):
            total += float(output.other[j]) * float(rows[j][k])
        totals.append(total)
    return np.array(totals).reshape(output.shape)


def scaled(written, values, scale):
    """(x - shift) / scale of one number after the other: the difference in float64, the quotient in float32."""
    shift, scale = (np.broadcast_to(x, written.shape).reshape(-1) for x in scale)
    numbers, flat = np.reshape(values, -1), written.reshape(-1)
    for k in range(len(flat)):
        flat[k] = np.float32(float(numbers[k]) - float(shift[k])) / np.float32(scale[k])


def gather(table, outputs, episode, number, span, given, length):
    """All outputs of samples [n], as `Bound.read` returns them; ``given`` maps functions to arrays."""
    made = []
    for output in outputs:
        lead = (len(episode), length) if length else (len(episode),)
        grid = output.offsets if output.place is RowPlace.OFFSETS else ()
        out = np.zeros((*lead, *((len(grid),) if grid else ()), *output.shape), output.dtype)
        for sample in range(len(episode)):
            for within in range(length or 1):
                one = None if span is None else span[sample]
                entry = Entry(table, episode[sample], number[sample], one, sample, within, length)
                for k, offset in enumerate(grid or (0,)):
                    at = (sample, *((within,) if length else ()), *((k,) if grid else ()))
                    array = None if output.given is None else given[output.given]
                    row, real = row_of(entry, output, array, offset)
                    written = np.zeros(output.shape, output.dtype)
                    value = value_of(table, entry, output, row, real, array)
                    written[...] = np.reshape(value, output.shape)
                    if output.scale is not None:
                        scaled(written, value, output.scale)
                    outside = not (real if grid else value_of_inside(entry, output, real))
                    out[at] = 0 if output.blank and outside else written
        made.append(out)
    return made


def value_of_inside(entry, output, real):
    """Whether an entry counts as inside, by the mask of an output."""
    of_place = output.mask & OF_PLACE and output.place is RowPlace.NEIGHBOUR
    return (entry.real or not output.mask & OF_WINDOW) and (real or not of_place)


def spans(table, episode, number, most, terminated, truncated):
    """The steps of n-step samples: up to the first done one, the last transition, or ``most``."""
    found = []
    for e, n in zip(map(int, episode), map(int, number), strict=True):
        step, span = n * table.stride + table.offset, 1
        while span < most and step + span < table.transitions[e]:
            row = int(table.start[e]) + step + span - 1
            if terminated[row] or truncated[row]:
                break
            span += 1
        found.append(span)
    return found


def goals(rule, limit, bounds, table, episode, number, length, u):
    """The rows of goals, and their steps in the sample's own episode; -1 for one of another."""
    rows, steps = [], []
    for i, e in enumerate(map(int, episode)):
        start, last = int(table.start[e]), int(table.steps[e]) - 1
        at = clip(first_step(table, number[i]) + max(0, length - 1), 0, last)
        x, ahead = float(u[i]), int(limit[e]) - 1 - at
        goal = at
        if rule.random > 0 and x >= rule.current + rule.future:
            picked = int(share(x, rule.current + rule.future, rule.random) * float(bounds[-1]))
            (other,), (there,) = find(bounds, [picked])
            rows.append(int(table.start[other]) + there)
            steps.append(there if int(table.start[other]) == start else -1)
            continue
        if rule.future > 0 and x >= rule.current:
            part = share(x, rule.current, rule.future)
            if rule.horizon == 0:
                goal += int(min(math.log(1 - part) / rule.log_gamma + 1.0, float(ahead)))
            elif rule.horizon == 1:
                goal += min(int(part * float(ahead)) + 1, ahead)
            elif rule.horizon == 2:
                goal += ahead
            elif rule.horizon == 3:
                goal = int(part * float(limit[e]))
            else:
                goal += min(rule.steps, ahead)
        goal = clip(goal, 0, last + 1)
        rows.append(start + goal)
        steps.append(goal)
    return rows, steps


def share(u, first, share):
    return clip((u - first) / share, 0.0, BELOW_ONE)
