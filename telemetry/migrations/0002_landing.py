"""The tables that ingest writes by COPY: seen batches, and hour-partitioned samples.

`at` is the agent's reading time and the partition key; `detail` is the whole sample as msgpack,
the typed columns repeat the scalars that charts read. There is no foreign key to
`telemetry_source`: checking it would cost more than the insert, and a source is removed only when
all of its samples are past retention.
"""

from django.db import migrations

SAMPLES = {
    "telemetry_instance_sample": """
        role text NOT NULL,
        running float8,
        waiting float8,
        kv_ratio float8,
        prompt_tokens_total float8,
        generation_tokens_total float8,
        prompt_tokens_per_s float8,
        generation_tokens_per_s float8,
        kv_transfer_bytes_total float8,
        preemptions_total float8,
    """,
    "telemetry_link_sample": """
        tx_bytes_total float8,
        rx_bytes_total float8,
        tx_gbps float8,
        rx_gbps float8,
        segments_sent_total float8,
        segments_retransmitted_total float8,
        retransmit_ratio float8,
        rtt_s float8,
        connections float8,
        capacity_gbps float8,
    """,
    "telemetry_router_sample": """
        plan_epoch bigint,
        plan_version bigint,
        requests_per_s float8,
        requests_local_total float8,
        requests_remote_total float8,
        in_flight_local float8,
        in_flight_remote float8,
    """,
}


def _create(table: str, columns: str) -> str:
    return f"""
    CREATE TABLE {table} (
        source_id bigint NOT NULL,
        at timestamptz NOT NULL,
        received_at timestamptz NOT NULL,
        state text NOT NULL,
        error text,
        {columns}
        detail bytea NOT NULL
    ) PARTITION BY RANGE (at);
    CREATE INDEX {table}_by_source ON {table} (source_id, at);
    CREATE TABLE {table}_default PARTITION OF {table} DEFAULT;
    """


_BATCH = """
    CREATE TABLE telemetry_batch (
        agent text NOT NULL,
        boot bigint NOT NULL,
        seq bigint NOT NULL,
        received_at timestamptz NOT NULL,
        CONSTRAINT one_commit_per_batch PRIMARY KEY (agent, boot, seq)
    );
    CREATE INDEX telemetry_batch_by_time ON telemetry_batch USING brin (received_at);
"""


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0001_initial")]

    operations = [
        migrations.RunSQL(_BATCH, "DROP TABLE telemetry_batch"),
        *(
            migrations.RunSQL(_create(table, columns), f"DROP TABLE {table}")
            for table, columns in SAMPLES.items()
        ),
    ]
