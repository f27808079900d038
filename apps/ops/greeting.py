"""What `manage.py up` prints when it is ready: addresses, passwords, the key, and two calls to paste."""

from dataclasses import dataclass

LINE = "-" * 78


@dataclass(frozen=True)
class People:
    """User names with the password where it was made just now; `make_with` is what `make password` needs
    besides the user."""

    operator: str
    operator_password: str | None
    member: str = ""
    member_password: str | None = None
    make_with: str = ""


def sign_in_lines(base_url: str, people: People) -> list[str]:
    """Where to sign in, and as whom. Printed as soon as the passwords exist."""
    lines = [f"Console  {base_url}/admin/   {_account(people, people.operator, people.operator_password)}"]
    if people.member:
        lines.append(f"Portal   {base_url}/        {_account(people, people.member, people.member_password)}")
    return lines


def _account(people: People, name: str, password: str | None) -> str:
    if password:
        return f"user {name}   password {password}   (shown this once)"
    command = " ".join(filter(None, ["make password", f"USER={name}", people.make_with]))
    return f"user {name}   password as shown at the first start; a new one: {command}"


def call_lines(base_url: str, model: str, api_key: str | None, certificate: str = "") -> list[str]:
    """The key, a curl and an SDK snippet, all ready to paste. `certificate` is the file of one that no
    authority signed: without it curl and SDKs refuse the server."""
    trust = [f"export SSL_CERT_FILE={certificate}"] if certificate else []
    lines = []
    if api_key:
        lines += [
            f"The key is shown this once. Paste these {'three' if trust else 'two'} lines:",
            *trust,
            f"export OPENAI_BASE_URL={base_url}/v1",
            f"export OPENAI_API_KEY={api_key}",
        ]
    else:
        lines += [
            "The key was shown when the service was made. For a new one sign in to the portal, API keys,",
            "or POST /api/v1/api-keys; then:",
            *trust,
            f"export OPENAI_BASE_URL={base_url}/v1",
            "export OPENAI_API_KEY=<the new key>",
        ]
    return [
        *lines,
        "",
        "curl $OPENAI_BASE_URL/chat/completions \\",
        '  -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \\',
        f"""  -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'""",
        "",
        "# Python, after: pip install openai",
        "from openai import OpenAI",
        f'for part in OpenAI().chat.completions.create(model="{model}", stream=True,',
        '        messages=[{"role": "user", "content": "Hello"}]):',
        '    print(part.choices[0].delta.content or "", end="", flush=True)',
    ]
