"""The packaged weights make exactly the mistakes that their cards say."""

import pytest

from purecaps import data
from purecaps.evaluate import evaluate
from purecaps.evaluate.trained import TrainedModel


@pytest.mark.net
@pytest.mark.parametrize("name", ["pcapsnet1", "pcapsnet2"])
def test_the_card_tells_the_error_on_the_whole_test_set(name):
    trained = TrainedModel.from_package(name)
    test = data.load("mnist").test
    result = evaluate(trained.model, trained.batches(test), num_classes=10)
    # The weights were trained and counted on a GPU: a tie may fall the other way here, a real difference may not.
    assert abs(result.errors - trained.info.record["test_errors"]) <= 2
