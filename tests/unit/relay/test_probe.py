"""vLLM's metrics, read without parsing all of them."""

from gateway.relay.probe import read_metrics

METRICS = b"""\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \\"quoted\\" {name}"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+03
vllm:generation_tokens_total{engine="0",model_name="m"} 500.0
"""


def test_the_few_lines_that_matter_are_found() -> None:
    """Counts, cache use and the tokens that prove progress."""
    report = read_metrics(METRICS, now=5.0)

    assert report.load is not None
    assert (report.load.running, report.load.waiting, report.load.kv_cache_usage) == (3, 2, 0.25)
    assert report.tokens_total == 2000.0


def test_several_engines_behind_one_server_add_up() -> None:
    """Data-parallel vLLM reports one line per engine."""
    report = read_metrics(METRICS + b'vllm:num_requests_running{engine="1",model_name="m"} 4.0\n', now=5.0)

    assert report.load is not None
    assert report.load.running == 7


def test_a_server_that_is_not_vllm_is_not_well() -> None:
    """Some web server that answers 200 to everything gets no traffic."""
    assert read_metrics(b"<html>hello</html>", now=5.0).reason is not None
