from django.apps import AppConfig


class ApprovalsConfig(AppConfig):
    name = "routing.approvals"
    label = "approvals"
    default_auto_field = "django.db.models.BigAutoField"
