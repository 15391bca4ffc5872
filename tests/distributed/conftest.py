import pytest
from spawning import Team


@pytest.fixture(scope="session")
def two():
    """Two ranks; tests leave their group as they found it."""
    team = Team(2)
    yield team
    team.close()


@pytest.fixture(scope="session")
def four():
    team = Team(4)
    yield team
    team.close()
