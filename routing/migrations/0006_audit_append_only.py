"""The audit only grows, whoever is connected, and tells when it was tampered with.

Rows cannot be changed, deleted or truncated. When a transaction commits, each of its rows is sealed
with the SHA-256 over the seal before it and the row itself; a lock puts seals in one order, and is
taken last, so nobody who holds it waits for anything else.
"""

from django.db import migrations, models

CREATE = """
CREATE FUNCTION routing_action_text(a routing_action) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_array(
        a.id, (extract(epoch FROM a.at) * 1000000)::bigint, a.actor, a.via, a.verb, a.fleet,
        a.target, a.before, a.after, a.reason, a.request_id
    )::text
$$;

CREATE FUNCTION routing_audit_refuse() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit only grows: % of % is refused', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE FUNCTION routing_action_seal() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE before_it bytea;
BEGIN
    PERFORM pg_advisory_xact_lock(7227431520062);
    SELECT digest INTO before_it FROM routing_actionseal ORDER BY id DESC LIMIT 1;
    INSERT INTO routing_actionseal (action, digest) VALUES (
        NEW.id,
        sha256(coalesce(before_it, ''::bytea) || convert_to(routing_action_text(NEW), 'UTF8'))
    );
    RETURN NULL;
END $$;

DO $$
DECLARE
    one routing_action;
    digest_of bytea := '';
BEGIN
    FOR one IN SELECT * FROM routing_action ORDER BY id LOOP
        digest_of := sha256(digest_of || convert_to(routing_action_text(one), 'UTF8'));
        INSERT INTO routing_actionseal (action, digest) VALUES (one.id, digest_of);
    END LOOP;
END $$;

CREATE CONSTRAINT TRIGGER routing_action_seal AFTER INSERT ON routing_action
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION routing_action_seal();
CREATE TRIGGER routing_action_kept BEFORE UPDATE OR DELETE ON routing_action
    FOR EACH ROW EXECUTE FUNCTION routing_audit_refuse();
CREATE TRIGGER routing_action_whole BEFORE TRUNCATE ON routing_action
    FOR EACH STATEMENT EXECUTE FUNCTION routing_audit_refuse();
CREATE TRIGGER routing_actionseal_kept BEFORE UPDATE OR DELETE ON routing_actionseal
    FOR EACH ROW EXECUTE FUNCTION routing_audit_refuse();
CREATE TRIGGER routing_actionseal_whole BEFORE TRUNCATE ON routing_actionseal
    FOR EACH STATEMENT EXECUTE FUNCTION routing_audit_refuse();
"""
DROP = """
DROP TRIGGER routing_actionseal_whole ON routing_actionseal;
DROP TRIGGER routing_actionseal_kept ON routing_actionseal;
DROP TRIGGER routing_action_whole ON routing_action;
DROP TRIGGER routing_action_kept ON routing_action;
DROP TRIGGER routing_action_seal ON routing_action;
DROP FUNCTION routing_action_seal();
DROP FUNCTION routing_audit_refuse();
DROP FUNCTION routing_action_text(routing_action);
"""


class Migration(migrations.Migration):
    dependencies = [("routing", "0005_holds_of_roles")]

    operations = [
        migrations.AddField(
            model_name="action",
            name="request_id",
            field=models.CharField(blank=True, default="", max_length=64),
            preserve_default=False,
        ),
        migrations.CreateModel(
            name="ActionSeal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("action", models.BigIntegerField(unique=True)),
                ("digest", models.BinaryField(max_length=32)),
            ],
        ),
        migrations.RunSQL(CREATE, DROP),
    ]
