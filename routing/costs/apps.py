from django.apps import AppConfig


class CostsConfig(AppConfig):
    name = "routing.costs"
    label = "costs"
    default_auto_field = "django.db.models.BigAutoField"
