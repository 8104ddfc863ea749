"""Tables, and the triggers that write events.

Triggers see whole statements: a decision for 200 routers is one statement of 200 deliveries.
"""

from django.db import migrations, models

INSERT = """
    INSERT INTO rest_event (transaction, at, fleet, kind, change, subject, data)
    SELECT pg_current_xact_id()::text::bigint, clock_timestamp(), """

HOLD = """jsonb_build_object(
        'cluster', fresh.cluster, 'mode', fresh.mode, 'threshold_tokens', fresh.threshold_tokens,
        'n_prefill', fresh.n_prefill, 'n_decode', fresh.n_decode, 'owner', fresh.owner,
        'reason', fresh.reason, 'expires_at', fresh.expires_at, 'released_at', fresh.released_at,
        'released_by', fresh.released_by)"""
INCIDENT = """jsonb_build_object(
        'rule', fresh.rule, 'cluster', fresh.cluster, 'severity', fresh.severity,
        'sentence', fresh.sentence, 'n', fresh.n,
        'acknowledged_by', fresh.acknowledged_by, 'resolved_at', fresh.resolved_at)"""
DELIVERY = """jsonb_build_object(
        'decision', fresh.decision_id, 'router', fresh.router, 'error', fresh.error)"""


def rebalance(row: str, instance: str, step: str) -> str:
    return f"""jsonb_build_object(
        'cluster', {row}.cluster, 'from_n_prefill', {row}.from_n_prefill,
        'from_n_decode', {row}.from_n_decode, 'to_n_prefill', {row}.to_n_prefill,
        'to_n_decode', {row}.to_n_decode, 'reason', {row}.reason,
        'requested_by', {row}.requested_by, 'instance', {instance}, 'step', {step})"""


BODIES = {
    "rest_decision_made": f"""
        {INSERT} fresh.fleet_id, 'decision', fresh.kind, fresh.id, jsonb_build_object(
            'epoch', fresh.epoch, 'version', fresh.version, 'reason', fresh.reason,
            'message', fresh.message)
        FROM after_rows fresh ORDER BY fresh.id""",
    "rest_delivery_begun": f"""
        {INSERT} decision.fleet_id, 'delivery', fresh.state, fresh.id, {DELIVERY}
        FROM after_rows fresh JOIN routing_decision decision ON decision.id = fresh.decision_id
        ORDER BY fresh.id""",
    "rest_delivery_changed": f"""
        {INSERT} decision.fleet_id, 'delivery', fresh.state, fresh.id, {DELIVERY}
        FROM after_rows fresh
        JOIN before_rows stale ON stale.id = fresh.id AND stale.state <> fresh.state
        JOIN routing_decision decision ON decision.id = fresh.decision_id
        ORDER BY fresh.id""",
    "rest_hold_placed": f"""
        {INSERT} fresh.fleet_id, 'hold', 'placed', fresh.id, {HOLD}
        FROM after_rows fresh ORDER BY fresh.id""",
    "rest_hold_changed": f"""
        {INSERT} fresh.fleet_id, 'hold', CASE
            WHEN fresh.released_at IS NOT DISTINCT FROM stale.released_at THEN 'extended'
            WHEN fresh.released_at >= fresh.expires_at THEN 'expired' ELSE 'released' END,
            fresh.id, {HOLD}
        FROM after_rows fresh JOIN before_rows stale ON stale.id = fresh.id
        WHERE fresh.released_at IS DISTINCT FROM stale.released_at
            OR fresh.expires_at <> stale.expires_at
        ORDER BY fresh.id""",
    "rest_incident_opened": f"""
        {INSERT} fresh.fleet, 'incident', 'opened', fresh.id, {INCIDENT}
        FROM after_rows fresh ORDER BY fresh.id""",
    "rest_incident_changed": f"""
        {INSERT} fresh.fleet, 'incident', CASE
            WHEN fresh.resolved_at IS DISTINCT FROM stale.resolved_at THEN 'resolved'
            WHEN fresh.acknowledged_at IS DISTINCT FROM stale.acknowledged_at
                THEN 'acknowledged'
            ELSE 'severity' END, fresh.id, {INCIDENT}
        FROM after_rows fresh JOIN before_rows stale ON stale.id = fresh.id
        WHERE fresh.resolved_at IS DISTINCT FROM stale.resolved_at
            OR fresh.acknowledged_at IS DISTINCT FROM stale.acknowledged_at
            OR fresh.severity <> stale.severity
        ORDER BY fresh.id""",
    "rest_rebalance_opened": f"""
        {INSERT} fresh.fleet_id, 'rebalance', fresh.state, fresh.id,
            {rebalance("fresh", "NULL", "NULL")}
        FROM after_rows fresh ORDER BY fresh.id""",
    "rest_rebalance_changed": f"""
        {INSERT} fresh.fleet_id, 'rebalance', fresh.state, fresh.id,
            {rebalance("fresh", "NULL", "NULL")}
        FROM after_rows fresh
        JOIN before_rows stale ON stale.id = fresh.id AND stale.state <> fresh.state
        ORDER BY fresh.id""",
    "rest_move_stepped": f"""
        {INSERT} whole.fleet_id, 'rebalance', 'step', whole.id,
            {rebalance("whole", "fresh.instance", "fresh.step")}
        FROM after_rows fresh
        JOIN before_rows stale ON stale.id = fresh.id AND stale.step <> fresh.step
        JOIN routing_rebalance whole ON whole.id = fresh.rebalance_id
        ORDER BY fresh.id""",
}
FUNCTIONS = "".join(
    f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ "
    f"BEGIN {body}; RETURN NULL; END $$;\n"
    for name, body in BODIES.items()
)
NEW = "REFERENCING NEW TABLE AS after_rows FOR EACH STATEMENT EXECUTE FUNCTION"
BOTH = f"REFERENCING OLD TABLE AS before_rows {NEW.removeprefix('REFERENCING ')}"
TRIGGERS = (
    ("routing_decision", "INSERT", "rest_decision_made"),
    ("routing_delivery", "INSERT", "rest_delivery_begun"),
    ("routing_delivery", "UPDATE", "rest_delivery_changed"),
    ("routing_hold", "INSERT", "rest_hold_placed"),
    ("routing_hold", "UPDATE", "rest_hold_changed"),
    ("alerts_incident", "INSERT", "rest_incident_opened"),
    ("alerts_incident", "UPDATE", "rest_incident_changed"),
    ("routing_rebalance", "INSERT", "rest_rebalance_opened"),
    ("routing_rebalance", "UPDATE", "rest_rebalance_changed"),
    ("routing_rolemove", "UPDATE", "rest_move_stepped"),
)
ATTACH = "".join(
    f"CREATE TRIGGER {function} AFTER {when} ON {table} "
    f"{NEW if when == 'INSERT' else BOTH} {function}();\n"
    for table, when, function in TRIGGERS
)
DETACH = "".join(
    f"DROP TRIGGER {function} ON {table};\nDROP FUNCTION {function}();\n"
    for table, _, function in TRIGGERS
)


class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ("routing", "0005_holds_of_roles"),
        ("alerts", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Event",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("transaction", models.BigIntegerField()),
                ("at", models.DateTimeField(db_index=True)),
                ("fleet", models.CharField(blank=True, max_length=100)),
                ("kind", models.CharField(max_length=20)),
                ("change", models.CharField(max_length=20)),
                ("subject", models.BigIntegerField(help_text="The id of what it happened to.")),
                ("data", models.JSONField()),
            ],
            options={
                "indexes": [models.Index(fields=["transaction", "id"], name="events_in_order")],
            },
        ),
        migrations.CreateModel(
            name="Answer",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("holder", models.CharField(max_length=60)),
                ("key", models.CharField(max_length=100)),
                ("asked", models.CharField(max_length=64)),
                ("at", models.DateTimeField(db_index=True)),
                ("status", models.PositiveSmallIntegerField(default=0)),
                ("headers", models.JSONField(default=dict)),
                ("body", models.TextField(null=True)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("holder", "key"), name="one_answer_per_holder_and_key")],
            },
        ),
        migrations.RunSQL(FUNCTIONS + ATTACH, DETACH),
    ]
