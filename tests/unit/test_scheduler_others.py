"""Nodes that are not ours alone: they come, change and go, and others use them too."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given

from support.builders import a_gang, a_node, a_request
from support.clusters import make_node, make_request, seeds, some_worlds
from support.recount import books, check
from support.world import World
from weft.scheduler.forecast import Picture

WHOLE = a_gang(a_request(4))


def test_what_others_use_is_not_given_away_and_is_used_when_they_have_gone() -> None:
    world = World([a_node("a", cpu=4)])
    world.state.occupy("theirs", "a", a_request(1))
    world.submit("ours", WHOLE)
    world.settle()
    assert world.running == set()
    world.state.vacate("theirs")
    world.settle()
    assert world.running == {"ours"}
    check(world.state)


def test_gpus_of_others_are_not_given_away_though_nobody_says_which_they_are() -> None:
    world = World([a_node("a", cpu=8, gpus=4)])
    world.state.occupy("theirs", "a", a_request(1, gpu=3))
    world.submit("two", a_gang(a_request(1, gpu=2)))
    world.submit("one", a_gang(a_request(1, gpu=1)))
    world.settle()
    assert world.running == {"one"}
    assert world.state.running["one"].tasks["worker-0"].gpus == (0,)


def test_others_may_take_more_than_there_is_and_harm_nobody() -> None:
    world = World([a_node("a", cpu=4, gpus=2), a_node("b", cpu=4)])
    world.runs("ours", a_gang(a_request(2, gpu=1)))
    world.state.occupy("theirs", "a", a_request(64, gpu=8))
    world.submit("next", a_gang(a_request(1)))
    world.settle()
    assert world.places("next") == {"b": 1}
    check(world.state)
    world.state.vacate("theirs")
    check(world.state)
    assert world.state.cluster.rooms["a"].cpu == 2000


def test_gpus_that_others_were_promised_while_ours_had_them_are_theirs_when_those_leave() -> None:
    world = World([a_node("a", cpu=8, gpus=4)])
    world.runs("ours", a_gang(a_request(1, gpu=4)))
    world.state.occupy("theirs", "a", a_request(1, gpu=3))
    world.state.leave("ours", world.now)
    world.submit("two", a_gang(a_request(1, gpu=2)))
    world.submit("one", a_gang(a_request(1, gpu=1)))
    world.settle()
    assert world.running == {"one"}
    check(world.state)
    world.state.vacate("theirs")
    world.settle()
    assert world.running == {"one", "two"}
    check(world.state)


def test_saying_twice_what_others_use_counts_once() -> None:
    world = World([a_node("a", cpu=4)])
    world.state.occupy("theirs", "a", a_request(1))
    world.state.occupy("theirs", "a", a_request(3))
    assert world.state.cluster.rooms["a"].cpu == 1000
    world.state.vacate("theirs")
    world.state.vacate("theirs")
    assert world.state.cluster.rooms["a"].cpu == 4000


def test_a_node_that_comes_is_used_and_one_that_goes_is_not() -> None:
    world = World([a_node("a", cpu=4)])
    world.runs("first", WHOLE)
    world.submit("second", WHOLE)
    world.settle()
    assert world.running == {"first"}
    world.state.renew([a_node("a", cpu=4), a_node("b", cpu=4)], world.now)
    world.settle()
    assert world.places("second") == {"b": 1}
    check(world.state)
    world.state.renew([a_node("b", cpu=4)], world.now)
    world.submit("third", WHOLE)
    world.settle()
    assert "third" not in world.running


def test_a_job_on_a_node_that_went_and_came_back_counts_there_again() -> None:
    world = World([a_node("a", cpu=4), a_node("b", cpu=4)])
    world.runs_on("ours", WHOLE, {"worker-0": "a"})
    world.state.renew([a_node("b", cpu=4)], world.now)
    world.state.renew([a_node("a", cpu=4), a_node("b", cpu=4)], world.now)
    check(world.state)
    assert world.state.cluster.rooms["a"].cpu == 0
    world.finish("ours")
    check(world.state)
    assert world.state.cluster.rooms["a"].cpu == 4000


def test_others_on_a_node_that_is_not_there_yet_count_when_it_comes() -> None:
    world = World([a_node("a", cpu=4)])
    world.state.occupy("theirs", "b", a_request(3))
    world.state.renew([a_node("a", cpu=4), a_node("b", cpu=4)], world.now)
    assert world.state.cluster.rooms["b"].cpu == 1000


def test_what_was_told_to_be_impossible_is_looked_at_again_when_nodes_come() -> None:
    world = World([a_node("a", cpu=1)])
    world.submit("ours", WHOLE)
    world.settle()
    assert world.running == set()
    world.state.renew([a_node("a", cpu=1), a_node("big", cpu=8)], world.now)
    world.settle()
    assert world.places("ours") == {"big": 1}


def test_a_forecast_knows_of_others() -> None:
    world = World([a_node("a", cpu=4)])
    world.state.occupy("theirs", "a", a_request(1))
    twin = Picture.of(world.state).books()
    assert twin.cluster.rooms["a"].cpu == 3000


@given(some_worlds())
def test_renewing_with_the_same_nodes_changes_nothing(world: World) -> None:
    world.settle()
    before = books(world.state)
    world.state.renew([replace(node, notes=("other",)) for node in world.state.cluster.nodes], world.now)
    check(world.state)
    after = books(world.state)
    assert {**after, "queues": None} == {**before, "queues": None}


@given(some_worlds(), seeds)
def test_whatever_comes_and_goes_the_books_are_exact(world: World, seed: int) -> None:
    r = Random(seed)
    nodes = list(world.state.cluster.nodes)
    for step in range(12):
        match r.randrange(5):
            case 0:
                nodes.append(make_node(r, 100 + step, False, False))
                world.state.renew(nodes, world.now)
            case 1 if len(nodes) > 1:
                free = [n for n in nodes if not world.state.cluster.rooms[n.name].tasks]
                if free:
                    nodes.remove(r.choice(free))
                    world.state.renew(nodes, world.now)
            case 2:
                place = r.randrange(len(nodes))
                nodes[place] = replace(nodes[place], cpu=nodes[place].cpu + 1000)
                world.state.renew(nodes, world.now)
            case 3:
                world.state.occupy(
                    f"other-{r.randrange(4)}", r.choice(nodes).name, replace(make_request(r), gpu_share=0)
                )
            case 4:
                world.state.vacate(f"other-{r.randrange(4)}")
        world.cycle()
        check(world.state)


def test_what_nodes_hold_changes_without_being_counted_anew_and_the_next_job_goes_there() -> None:
    nodes = [a_node("a", cpu=4), a_node("b", cpu=4)]
    world = World(nodes)
    before = world.state.cluster
    wants = a_gang(a_request(1), wants={"faces": 1 << 30})
    world.submit("first", wants)
    world.settle()
    holds = (("faces", 1 << 30),)
    other = "b" if [*world.places("first")] == ["a"] else "a"
    held = [replace(node, holds=holds if node.name == other else ()) for node in nodes]
    assert world.state.renew(held, world.now) is False
    assert world.state.cluster is before
    world.submit("second", wants)
    world.settle()
    assert [*world.places("second")] == [other]
    check(world.state)
    assert world.state.renew([replace(node, cpu=8000) for node in held], world.now) is True
