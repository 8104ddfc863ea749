"""A small hand-written engine text and the rules that place it."""

ENGINE = """\
process_start_time_seconds 1.7959552631e+09
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_running{engine="1",model_name="m"} 4
vllm:num_requests_waiting{engine="0",model_name="m"} 0
vllm:num_requests_waiting{engine="1",model_name="m"} 40
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.2
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.8
vllm:prompt_tokens_total{engine="0",model_name="m"} 1000
vllm:generation_tokens_total{engine="0",model_name="m"} 50
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 1
vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0",model_name="m"} 4
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 5
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 5
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 3.5
"""

RULES = """\
name = "test"

[[rules]]
match = { job = "vllm" }
id = "{fleet}/{cluster}/{instance}"
role = "{role}"
engine = "vllm"
"""

OTEL_RULE = """\

[[rules]]
match = { job = "engines" }
id = "{deployment_environment}/{cluster}/{instance}"
role = "prefill"
engine = "vllm"
"""
