"""The scripts' catalogue, for the head of a page."""

from __future__ import annotations

from django import template
from django.utils.translation import get_language

from console import core_words, languages

register = template.Library()
register.filter(core_words.spoken)


@register.simple_tag
def catalogue_url() -> str:
    """The address of the catalogue in the page's language; empty in English."""
    return languages.catalogue_url(get_language())
