"""Shard placement: equal on all nodes that know the same members, with minimal movement."""

from hypothesis import given
from hypothesis import strategies as st

from liveness.cluster.placement import choose_node

node_lists = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=8, unique=True)


def test_the_placement_of_shards_is_the_same_in_every_release() -> None:
    nodes = ["10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400"]
    placed = [nodes.index(str(choose_node(shard, nodes))) for shard in range(16)]
    assert placed == [1, 2, 0, 0, 1, 2, 0, 2, 1, 0, 0, 1, 0, 0, 1, 1]


@given(nodes=node_lists, shard=st.integers(0, 4_095), data=st.data())
def test_the_order_of_the_nodes_does_not_matter(nodes: list[str], shard: int, data: st.DataObject) -> None:
    assert choose_node(shard, data.draw(st.permutations(nodes))) == choose_node(shard, nodes)


@given(nodes=node_lists, new_node=st.text(min_size=1, max_size=20))
def test_a_new_node_takes_shards_and_moves_no_others(nodes: list[str], new_node: str) -> None:
    for shard in range(64):
        after = choose_node(shard, {*nodes, new_node})
        assert after in (choose_node(shard, nodes), new_node)


def test_without_nodes_no_node_is_chosen() -> None:
    assert choose_node(7, []) is None
