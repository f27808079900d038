"""Sentences about files of tasks (AGENT-12): a part of `texts.py`, which owns how codes are said."""

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

FILES: dict[str, Promise] = {
    "path_not_mounted": _(
        "%(field)s is %(value)s; it must be an absolute path on the node, in what the task mounts:"
        " %(mounts)s."
    ),
    "file_no_node": _("The task was never placed on a node that is still here, so it has no files."),
    "file_requests_open": _(
        "%(open)s file requests of this tenant wait for their nodes; at most %(max)s may. Wait, or delete"
        " some."
    ),
    "file_not_ready": _("The file is not here yet: the request is %(now)s. Ask for the request itself."),
    "file_is_a_list": _("The request asked for a list; its entries stand in the request itself."),
    "file_bytes_gone": _("The file's bytes are not in the store any more; ask for the file again."),
    "file_closed": _("The file request is closed; nothing more is taken for it."),
    "file_chunk_damaged": _("The piece of the file is not what its checksum says; send it again."),
    "range_not_satisfiable": _("The file has %(size)s bytes; no byte of it lies in the range asked for."),
    "file_not_found": _("There is no %(path)s on the node."),
    "file_not_regular": _("%(path)s is no file that could be sent; a folder can be listed."),
    "file_unreadable": _("The node's agent may not read %(path)s."),
    "file_changed": _("%(path)s was replaced or cut while it was sent; ask for it again."),
    "file_quota": _(
        "The file has %(size_mb)s MB, but of the %(limit_mb)s MB that the tenant's files may take here"
        " %(used_mb)s MB are taken. Delete file requests, or wait until they expire."
    ),
    "file_no_answer": _("The node sent nothing for %(after_s)s s; ask again when it is online."),
    "did_request_file": _("asked for files of the task"),
    "did_delete_file_request": _("deleted the file request"),
}
