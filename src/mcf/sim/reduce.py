"""In-network merge: states on their way to the same queries become one where their ways meet.

A merge of online-softmax states is associative, so that a relay (or a switch) can wait for all states that will cross
its next link to a node and send one in their place: a tree reduction. States of one query node, chunk and head span,
in one layer, form a group; a group whose ways part again behind a common node is left alone.
"""

from collections import Counter

import numpy as np

from mcf.cluster import SWITCH
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import DECODE, RECV, STATE
from mcf.sim.network import Link

Group = tuple[int, ...]


class Reduction:
    """Who becomes one with whom on each link."""

    def __init__(self, sched: Schedule, num_ticks: int, *, has_ports: bool) -> None:
        self.ticks = num_ticks
        s = sched.steps
        ways: dict[Group, list[tuple[int, list[Link]]]] = {}
        for recv in np.flatnonzero((s["kind"] == RECV) & (s["payload"] == STATE) & (s["stage"] != DECODE)).tolist():
            step = sched.step(recv)
            send = sched.step(step.ref)
            if send.dst < 0 or step.q != step.node:
                continue  # a multicast, or a state that will be sent on
            links = list(sched.routes[send.route]) if send.route >= 0 else [(send.node, send.dst)]
            group: Group = (step.q, step.chunk, step.h_lo, step.h_hi)
            ways.setdefault(group, []).append((recv, [(SWITCH, links[-1][1])] if has_ports else links))
        self.group: dict[int, Group] = {}
        self.expected: Counter[tuple[Group, Link]] = Counter()
        for group, members in ways.items():
            crossed = Counter(link for _, links in members for link in links)
            if len({a for a, _ in crossed}) == len(crossed):
                self.group.update((recv, group) for recv, _ in members)
                self.expected.update({(group, link): count for link, count in crossed.items()})
        self.here: dict[tuple[Group, Link, int], list[int]] = {}

    def team(self, inst: int, link: Link) -> tuple[int, ...]:
        """States that now cross a link as one: all of them when this was the last to come, none before."""
        recv, tick = divmod(inst, self.ticks)
        group = self.group.get(recv)
        if group is None:
            return (inst,)
        here = self.here.setdefault((group, link, tick), [])
        here.append(inst)
        if len(here) < self.expected[group, link]:
            return ()
        return tuple(self.here.pop((group, link, tick)))
