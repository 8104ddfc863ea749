from django.apps import AppConfig


class RestConfig(AppConfig):
    name = "routing.rest"
    label = "rest"
    default_auto_field = "django.db.models.BigAutoField"
