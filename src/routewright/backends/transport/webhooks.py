"""placeholder until merge"""


class AiohttpWebhooks: ...
