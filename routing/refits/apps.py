from django.apps import AppConfig


class RefitsConfig(AppConfig):
    name = "routing.refits"
    label = "refits"
    default_auto_field = "django.db.models.BigAutoField"
