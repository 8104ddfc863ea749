"""Batches land as they came and become columns: layouts, landing, chunks, roll-ups.

A batch is one row of the landing zone for some minutes. A job then turns what landed into chunks,
one row per layout, kind and two minutes with one byte string of all columns, and those into
roll-ups. `signals` and `ends` say which part of `data` is which column, so that a query reads only
the columns it needs: `data` is stored uncompressed (it already is) and out of line.
"""

from django.db import migrations

_OLD = ("telemetry_instance_sample", "telemetry_link_sample", "telemetry_router_sample")

_TABLES = """
    CREATE TABLE telemetry_signal (
        id smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL UNIQUE
    );
    CREATE TABLE telemetry_layout (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        digest bytea NOT NULL UNIQUE,
        facts bytea NOT NULL,
        last_seen_at timestamptz NOT NULL
    );
    CREATE INDEX telemetry_layout_by_time ON telemetry_layout (last_seen_at);

    CREATE TABLE telemetry_landing (
        layout_id bigint NOT NULL,
        landed_at timestamptz NOT NULL,
        at timestamptz NOT NULL,
        received_at timestamptz NOT NULL,
        body bytea NOT NULL
    ) PARTITION BY RANGE (landed_at);
    ALTER TABLE telemetry_landing ALTER COLUMN body SET STORAGE EXTERNAL;
    CREATE INDEX telemetry_landing_by_layout ON telemetry_landing (layout_id, at);
    CREATE TABLE telemetry_landing_default PARTITION OF telemetry_landing DEFAULT;

    CREATE TABLE telemetry_compaction (
        only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
        landed_until timestamptz NOT NULL,
        floor timestamptz NOT NULL,
        -- Nothing lands before it, whatever the clock says.
        cut timestamptz NOT NULL
    );
    INSERT INTO telemetry_compaction (landed_until, floor, cut)
        VALUES ('epoch'::timestamptz, 'epoch'::timestamptz, 'epoch'::timestamptz);

    -- Which sequence numbers of its present boot are stored; `compaction` moves them here from
    -- telemetry_batch.
    ALTER TABLE telemetry_agent ADD COLUMN stored int8multirange NOT NULL DEFAULT '{}';

    CREATE TABLE telemetry_pending (
        table_name text NOT NULL,
        layout_id bigint NOT NULL,
        kind smallint NOT NULL,
        start timestamptz NOT NULL,
        PRIMARY KEY (table_name, start, layout_id, kind)
    );
"""


def _columns(table: str) -> str:
    return f"""
    CREATE TABLE {table} (
        layout_id bigint NOT NULL,
        kind smallint NOT NULL,
        start timestamptz NOT NULL,
        at_max timestamptz NOT NULL,
        landed_at timestamptz NOT NULL,
        n_ticks integer NOT NULL,
        signals smallint[] NOT NULL,
        ends integer[] NOT NULL,
        data bytea NOT NULL
    ) PARTITION BY RANGE (start);
    ALTER TABLE {table} ALTER COLUMN data SET STORAGE EXTERNAL;
    CREATE INDEX {table}_by_layout ON {table} (layout_id, kind, start);
    CREATE TABLE {table}_default PARTITION OF {table} DEFAULT;
    """


_COLUMN_TABLES = ("telemetry_chunk", "telemetry_rollup_10s", "telemetry_rollup_1m")


class Migration(migrations.Migration):
    dependencies = [("telemetry", "0003_reports")]

    operations = [
        migrations.RunSQL(_TABLES, migrations.RunSQL.noop),
        *(migrations.RunSQL(_columns(table), f"DROP TABLE {table}") for table in _COLUMN_TABLES),
        # Raw samples of the old layout lived for hours only; agents' spools hold what comes next.
        *(migrations.RunSQL(f"DROP TABLE {table}", migrations.RunSQL.noop) for table in _OLD),
    ]
