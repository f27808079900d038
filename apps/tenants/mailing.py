"""Sends a one-time link by e-mail, where a mail server is configured (EMAIL_URL). Never inside a
transaction; a mail that can't be sent costs nothing but itself: whoever made the link has it on the page."""

import logging
import smtplib

from django.conf import settings
from django.core.mail import send_mail
from django.utils.translation import gettext as _

from apps.tenants.models import LinkPurpose, OneTimeLink

log = logging.getLogger("heteroflow.tenants")


def send_link(link: OneTimeLink, address: str) -> bool | None:
    """Whether it was sent; None where there is nobody to send it to, or no server to send it by."""
    if not link.email or not settings.EMAIL_URL:
        return None
    if link.purpose == LinkPurpose.INVITE:
        subject = _("Invitation to HeteroFlow")
        text = _("You are invited to %(tenant)s. Open this link, it works once: %(link)s") % {
            "tenant": link.tenant.name if link.tenant else "",
            "link": address,
        }
    else:
        subject = _("A new password for HeteroFlow")
        text = _("Set a new password by this link, it works once: %(link)s") % {"link": address}
    try:
        send_mail(subject, text, settings.DEFAULT_FROM_EMAIL, [link.email])
    except (OSError, smtplib.SMTPException) as error:
        log.warning("the link %s could not be sent: %s", link.public_id, type(error).__name__)
        return False
    return True
