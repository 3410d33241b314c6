package secret

import "sync"

// A shape is what tokens of one kind look like: an anchor, which is a text
// they always contain, and what must stand around it. Tokens without such a
// text (a password, a bare 40-digit key) have no shape that can be told from
// ordinary content, and none is attempted.
//
// This is the only table of tokens. Each use looks for every row, but for those that say `not`:
//
//   - Files (Scanner): import leaves out what a program may need, so a token
//     must be certain: its length, its alphabet, its checksum, and looks random.
//   - Texts (Spans, InText): in records, variables and settings a token that was missed
//     is a leak, and a text that was taken for one is no loss. Tokens that are cut off,
//     made up or glued to a word count.
//   - Requests (InRequest): as in texts, and without hints: the sender chooses
//     its token and may choose one that is unlikely.
type shape struct {
	what    string
	service string // the name that a credential for it has, "" for none
	anchors []string
	heads   []string // longer beginnings that programs look at
	rare    int      // where the three rarest bytes of an anchor are, for the filter
	// A token is an anchor, at the beginning of a word, and then min to max
	// bytes of body that look random, max 0 meaning any number.
	body     *byteSet
	min, max int
	inside   bool // the anchor stands in the middle of a word
	named    bool // counts only in files with names that promise credentials
	// check adds to this what the format allows to verify.
	check func(body []byte) bool
	// find replaces all of this. It gets the neighbourhood and where the
	// anchor is in it, and returns where the token is.
	find func(b []byte, at, end int) (from, to int, ok bool)

	// In texts and in requests, some bytes of body are enough, of the alphabet wide; without
	// these it is as in files, but that neither max nor check count, nor randomness.
	some  int
	wide  *byteSet
	glued bool // the anchor is in no other word: what stands before it does not matter
	// hint tells a token from a word, in texts.
	hint func(body []byte) bool
	// span replaces all of this. It returns where the token is, which is nowhere if to is 0,
	// and where to go on looking for the anchors.
	span func(b []byte, at, end int) (from, to, next int)

	not use // what does not look for it
}

// A use is a set of places in which tokens are looked for.
type use uint8

const (
	files use = 1 << iota
	texts
	requests
)

// at judges whether the anchor at b[start:] of length n belongs to a token, and
// returns where that begins.
func (s *shape) at(b []byte, start, n int) (int, bool) {
	if s.find != nil {
		from, _, ok := s.find(b, start, start+n)
		return from, ok
	}
	if !s.inside && !wordStart(b, start) {
		return 0, false
	}
	body := leading(b[start+n:], s.body)
	if len(body) < s.min || (s.max > 0 && len(body) > s.max) {
		return 0, false
	}
	if !looksRandom(body) || (s.check != nil && !s.check(body)) {
		return 0, false
	}
	return start, true
}

// The alphabets of tokens.
var (
	hexDigits = newByteSet("0-9a-f")
	alnum     = newByteSet("0-9A-Za-z")
	upperNum  = newByteSet("0-9A-Z")
	alnumLine = newByteSet("0-9A-Za-z_")
	base64Std = newByteSet("0-9A-Za-z+/=")
	base64URL = newByteSet("0-9A-Za-z_--")
	base64Dot = newByteSet("0-9A-Za-z_.--")
	slashes   = newByteSet("0-9A-Za-z_/--")
	hexDash   = newByteSet("0-9a-f--")
	bearer    = newByteSet("0-9A-Za-z._~+/=--")
)

// shapes are the tokens that are looked for. Lengths are those that the
// services document or issue; where they vary, the shortest seen.
var shapes = sync.OnceValue(func() []shape {
	return []shape{
		{what: "GitHub token", service: "github", anchors: []string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_"}, body: alnum, min: 36, max: 36, check: crcBase62, some: 20, glued: true},
		{what: "GitHub installation token", anchors: []string{"ghs_"}, body: base64Dot, min: 100, check: hasJWT, some: 40, glued: true},
		{what: "GitHub fine-grained token", service: "github", anchors: []string{"github_pat_"}, rare: 6, body: alnumLine, min: 82, max: 82, some: 20, glued: true},
		{what: "GitLab token", service: "gitlab", anchors: []string{"glpat-", "gldt-", "glrt-", "glptt-", "glft-", "glsoat-", "glcbt-", "glagent-"}, body: base64Dot, min: 20, max: 320, some: 16, glued: true},
		{what: "Slack token", anchors: []string{"xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-", "xoxc-", "xoxe-", "xapp-"}, body: base64URL, min: 32, some: 10, glued: true},
		{what: "Slack webhook", anchors: []string{"hooks.slack.com/services/"}, rare: 9, inside: true, body: slashes, min: 40, max: 80, some: 20},
		{what: "Discord webhook", anchors: []string{"discord.com/api/webhooks/", "discordapp.com/api/webhooks/"}, rare: 13, inside: true, body: slashes, min: 80, max: 100, some: 40},
		{what: "Telegram bot token", anchors: []string{":AA"}, find: findTelegram},
		{what: "Stripe live key", anchors: []string{"sk_live_", "rk_live_"}, rare: 1, body: alnum, min: 24, some: 16, glued: true},
		// Tests are full of these, and they open nothing.
		{what: "Stripe test key", anchors: []string{"sk_test_", "rk_test_"}, rare: 1, body: alnum, min: 24, some: 16, glued: true, not: files},
		{what: "HubSpot token", anchors: []string{"pat-na1-", "pat-na2-", "pat-eu1-", "pat-ap1-"}, rare: 2, body: hexDash, min: 36, max: 36},

		{what: "Anthropic key", service: "anthropic", anchors: []string{"sk-ant-"}, heads: []string{"sk-ant-api03-", "sk-ant-oat01-", "sk-ant-admin01-"}, rare: 2, body: base64URL, min: 80, some: 16, glued: true},
		{what: "OpenAI key", service: "openai", anchors: []string{"sk-proj-", "sk-svcacct-", "sk-admin-"}, rare: 2, body: base64URL, min: 40, some: 16},
		{what: "OpenAI key", anchors: []string{"T3BlbkFJ"}, find: findOpenAI},
		{what: "OpenRouter key", service: "openrouter", anchors: []string{"sk-or-v1-"}, rare: 5, body: hexDigits, min: 64, max: 64, some: 16, wide: base64URL},
		// DeepSeek's and others'; OpenAI's older ones are found by their middle.
		{what: "API key", service: "openai", anchors: []string{"sk-"}, body: hexDigits, min: 32, max: 32, some: 20, wide: base64URL, hint: hasDigit},
		{what: "Groq key", anchors: []string{"gsk_"}, body: alnum, min: 52, max: 52, some: 20},
		{what: "xAI key", anchors: []string{"xai-"}, body: alnum, min: 80, max: 80, some: 40},
		{what: "Perplexity key", anchors: []string{"pplx-"}, body: alnum, min: 48, max: 48, some: 20},
		{what: "Replicate token", anchors: []string{"r8_"}, body: alnum, min: 37, max: 37},
		{what: "Hugging Face token", service: "huggingface", anchors: []string{"hf_"}, body: alnum, min: 34, max: 34, some: 20},
		{what: "Hugging Face token", service: "huggingface", anchors: []string{"api_org_"}, rare: 2, body: alnum, min: 34, max: 34},
		{what: "LangSmith key", anchors: []string{"lsv2_pt_", "lsv2_sk_"}, body: alnumLine, min: 43, max: 43, some: 20},
		{what: "pando token", anchors: []string{"pando_"}, rare: 2, body: hexDigits, min: 40, max: 40},
		{what: "pando token", anchors: []string{"pando_envd_", "pando_traffic_"}, rare: 2, body: hexDigits, min: 64, max: 64}, // of a sandbox
		{what: "E2B key", anchors: []string{"e2b_"}, body: hexDigits, min: 40, max: 40},

		{what: "AWS access key", anchors: []string{"AKIA", "ASIA"}, find: findAWSPair, some: 16, wide: upperNum},                                                                 // alone it tells an account
		{what: "AWS secret key", anchors: []string{"secret_access_key", "secretAccessKey", "SecretAccessKey", "SECRET_ACCESS_KEY"}, rare: 4, find: findAWSSecret, not: requests}, // signs, and is not sent
		{what: "Google API key", service: "gemini", anchors: []string{"AIza"}, body: base64URL, min: 35, max: 35, some: 30},
		{what: "Google OAuth client secret", anchors: []string{"GOCSPX-"}, body: base64URL, min: 28, max: 28},
		{what: "Google OAuth token", service: "google", anchors: []string{"ya29."}, body: base64URL, min: 50, some: 20},
		{what: "Google OAuth refresh token", anchors: []string{"1//0"}, body: base64URL, min: 40},
		{what: "Azure storage key", anchors: []string{"AccountKey="}, rare: 6, inside: true, body: base64Std, min: 88, max: 88, check: endsIn("==")},
		{what: "Azure shared access key", anchors: []string{"SharedAccessKey="}, rare: 5, body: base64Std, min: 44, max: 44, check: endsIn("=")},
		{what: "Azure client secret", anchors: []string{"0Q~", "1Q~", "2Q~", "3Q~", "4Q~", "5Q~", "6Q~", "7Q~", "8Q~", "9Q~"}, find: findAzureSecret},
		{what: "DigitalOcean token", anchors: []string{"dop_v1_", "doo_v1_", "dor_v1_"}, rare: 2, body: hexDigits, min: 64, max: 64, some: 30, wide: alnum, glued: true},
		{what: "Databricks token", anchors: []string{"dapi"}, body: hexDash, min: 32, max: 34},
		{what: "Fly.io token", anchors: []string{"fm2_"}, body: base64Std, min: 100, some: 40},
		{what: "Heroku key", anchors: []string{"HRKU-"}, body: base64URL, min: 36, max: 70},
		{what: "Supabase token", anchors: []string{"sbp_"}, body: hexDigits, min: 40, max: 40},
		{what: "Supabase secret key", anchors: []string{"sb_secret_"}, rare: 1, body: base64URL, min: 22},
		{what: "PlanetScale token", anchors: []string{"pscale_tkn_", "pscale_pw_"}, rare: 5, body: base64Dot, min: 32},

		{what: "npm token", service: "npm", anchors: []string{"npm_"}, rare: 1, body: alnum, min: 36, max: 36, some: 30},
		{what: "PyPI token", anchors: []string{"pypi-AgEIcHlwaS5vcmc", "pypi-AgENdGVzdC5weXBpLm9yZw"}, rare: 5, body: base64URL, min: 50, some: 16},
		// Where what follows is not certain: names of packages begin so too.
		{what: "PyPI token", service: "pypi", anchors: []string{"pypi-"}, body: base64URL, min: 30, hint: hasDigit, not: files},
		{what: "RubyGems key", anchors: []string{"rubygems_"}, rare: 6, body: hexDigits, min: 48, max: 48},
		{what: "crates.io token", anchors: []string{"cio"}, body: alnum, min: 32, max: 32},
		{what: "Docker token", anchors: []string{"dckr_pat_", "dckr_oat_"}, body: base64URL, min: 27, max: 40, some: 20},
		{what: "Vault token", anchors: []string{"hvs.", "hvb.", "hvr."}, body: base64URL, min: 24},
		{what: "Terraform Cloud token", anchors: []string{".atlasv1."}, rare: 5, inside: true, body: base64URL, min: 60},
		{what: "Atlassian token", anchors: []string{"ATATT3xFfGF0", "ATCTT3xFfGF0"}, rare: 4, body: base64Std.or(base64URL), min: 100, some: 40},
		{what: "SendGrid key", anchors: []string{"SG."}, body: base64Dot, min: 66, max: 66, check: func(b []byte) bool { return b[22] == '.' }},
		{what: "Shopify token", anchors: []string{"shpat_", "shpca_", "shppa_", "shpss_"}, body: newByteSet("0-9A-Fa-f"), min: 32, max: 32},
		{what: "Grafana token", anchors: []string{"glsa_"}, body: alnumLine, min: 41, max: 41},
		{what: "Grafana Cloud token", anchors: []string{"glc_eyJ"}, rare: 2, body: base64Std, min: 60},
		{what: "Sentry token", anchors: []string{"sntrys_eyJ"}, body: alnumLine.or(base64Std), min: 80},
		{what: "Sentry user token", anchors: []string{"sntryu_"}, body: hexDigits, min: 64, max: 64},
		{what: "New Relic key", anchors: []string{"NRAK-"}, body: upperNum, min: 27, max: 27},
		{what: "Linear key", anchors: []string{"lin_api_"}, rare: 2, body: alnum, min: 40, max: 40, some: 20},
		{what: "Notion token", anchors: []string{"ntn_"}, body: alnum, min: 46, max: 46},
		{what: "Postman key", anchors: []string{"PMAK-"}, body: hexDash, min: 59, max: 59},
		{what: "Doppler token", anchors: []string{"dp.pt.", "dp.st.", "dp.ct.", "dp.sa."}, body: alnum.or(newByteSet(".")), min: 40, max: 60},
		{what: "Tailscale key", anchors: []string{"tskey-"}, body: base64URL, min: 30},
		{what: "1Password token", anchors: []string{"ops_eyJ"}, rare: 2, body: base64Std, min: 250, some: 40},

		// Keys that sign or decrypt are not sent in requests.
		{what: "private key", anchors: []string{"PRIVATE KEY"}, find: findPEM, span: spanPEM, not: requests},
		{what: "private key", anchors: []string{"Private-Lines: "}, rare: 5, find: findPuTTY, span: spanPuTTY, not: requests},
		{what: "private key", anchors: []string{"\x02\x01\x00\x30", "\x02\x01\x00\x02", "\x02\x01\x01\x04"}, find: findDER, not: texts | requests}, // a file, not a text
		{what: "private key", anchors: []string{"LS0tLS1CRUdJTi"}, span: spanEncodedPEM, not: files | requests},                                    // "-----BEGIN" in base64
		{what: "age secret key", anchors: []string{"AGE-SECRET-KEY-1", "AGE-SECRET-KEY-PQ-1"}, rare: 3, find: findAge, some: 50, wide: upperNum, glued: true, not: requests},
		// A field in a file of credentials; texts have no name that promises them.
		{what: "credential", named: true, anchors: []string{"private_key", "client_secret", "refresh_token", "access_token", "auth_token", "session_token", "secret_key", "password", "api_key", "secret_access_key"}, rare: 3, find: findCredential, not: texts | requests},

		// Tests and documents are full of these, and most have expired.
		{what: "JSON Web Token", anchors: []string{"eyJ"}, span: spanJWT, not: files | requests},
		{what: "JSON Web Token", anchors: []string{"eyJ"}, span: spanAnyJWT, not: files | texts}, // encrypted ones too
		// Imports edit these out of the files that have them; the gateway judges a header by its name.
		{what: "HTTP authentication", anchors: []string{"Bearer ", "bearer "}, span: spanBearer, not: files | requests},
		{what: "HTTP authentication", anchors: []string{"Basic ", "basic "}, span: spanBasic, not: files | requests},
		{what: "password in a URL", anchors: []string{"://"}, span: spanPassword, not: files | requests},
	}
})
