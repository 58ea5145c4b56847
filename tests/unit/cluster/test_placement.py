"""Where shards belong: the same for everybody who knows the same nodes, and moving as little as can be."""

from hypothesis import given
from hypothesis import strategies as st

from liveness.cluster.placement import choose_node

places = st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=8, unique=True)


def test_where_a_shard_belongs_never_changes_between_versions() -> None:
    nodes = ["10.0.0.1:7400", "10.0.0.2:7400", "10.0.0.3:7400"]
    placed = [nodes.index(str(choose_node(shard, nodes))) for shard in range(16)]
    assert placed == [1, 2, 0, 0, 1, 2, 0, 2, 1, 0, 0, 1, 0, 0, 1, 1]


@given(nodes=places, shard=st.integers(0, 4_095), data=st.data())
def test_the_order_in_which_nodes_are_known_does_not_matter(
    nodes: list[str], shard: int, data: st.DataObject
) -> None:
    assert choose_node(shard, data.draw(st.permutations(nodes))) == choose_node(shard, nodes)


@given(nodes=places, newcomer=st.text(min_size=1, max_size=20))
def test_a_newcomer_takes_shards_and_moves_no_other(nodes: list[str], newcomer: str) -> None:
    for shard in range(64):
        after = choose_node(shard, {*nodes, newcomer})
        assert after in (choose_node(shard, nodes), newcomer)


def test_nobody_gets_anything_where_there_is_nobody() -> None:
    assert choose_node(7, []) is None
