"""Minutes of mixed traffic on the production profile: what fails, what grows, is every call counted.

Its stack is the tests' (tests/production_stack.py), which reads the names of loops from the apps.
"""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "heteroflow.settings.test")
django.setup()
