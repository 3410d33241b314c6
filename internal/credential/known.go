package credential

import (
	"slices"
	"sort"
	"strings"
	"sync"
)

// known is a service that needs no --for and no --as.
type known struct {
	forms []form // the value has the prefix of the first that fits; the last has none
	also  []Use
}

// form is one kind of secret of a service.
type form struct {
	prefix string
	hosts  []string // each may have a path; all of it without one
	as     string
	env    []string
	claims bool // programs read the claims in it
}

const bearer = "Authorization: Bearer {secret}"

var services = sync.OnceValue(func() map[string]known {
	one := func(as string, hosts []string, env ...string) known {
		return known{forms: []form{{hosts: hosts, as: as, env: env}}}
	}
	return map[string]known{
		"anthropic": {forms: []form{
			// What `claude setup-token` prints.
			{prefix: "sk-ant-oat", hosts: []string{"api.anthropic.com"}, as: bearer, env: []string{"CLAUDE_CODE_OAUTH_TOKEN"}},
			{hosts: []string{"api.anthropic.com"}, as: "x-api-key: {secret}", env: []string{"ANTHROPIC_API_KEY"}},
		}},
		// The token is good for all of an account's: conversations, tasks in the cloud. This is what Codex
		// asks for its own work.
		"chatgpt": {forms: []form{{
			hosts: []string{"chatgpt.com/backend-api/codex/**", "chatgpt.com/backend-api/wham/accounts/check",
				"chatgpt.com/backend-api/wham/rate-limit-reset-credits", "chatgpt.com/backend-api/wham/settings/user", "chatgpt.com/backend-api/wham/usage"},
			as: bearer, env: []string{"CHATGPT_ACCESS_TOKEN"}, claims: true,
		}}},
		"openai":     one(bearer, []string{"api.openai.com"}, "OPENAI_API_KEY"),
		"openrouter": one(bearer, []string{"openrouter.ai"}, "OPENROUTER_API_KEY"),
		"gemini":     one("x-goog-api-key: {secret}", []string{"generativelanguage.googleapis.com"}, "GEMINI_API_KEY", "GOOGLE_API_KEY"),
		// An account's token is good for Google's cloud, too. This is what Gemini CLI asks.
		"google": one(bearer, []string{"cloudcode-pa.googleapis.com", "www.googleapis.com/oauth2/v2/userinfo"}, "GOOGLE_CLOUD_ACCESS_TOKEN"),
		"github": {
			forms: []form{{hosts: []string{"api.github.com", "uploads.github.com"}, as: bearer, env: []string{"GH_TOKEN", "GITHUB_TOKEN"}}},
			also:  []Use{{places("github.com"), "Authorization: Basic {basic:x-access-token}"}}, // git over https
		},
		"gitlab": {
			forms: []form{{hosts: []string{"gitlab.com"}, as: "PRIVATE-TOKEN: {secret}", env: []string{"GITLAB_TOKEN"}}},
		},
		"npm":         one(bearer, []string{"registry.npmjs.org"}, "NPM_TOKEN", "NODE_AUTH_TOKEN"),
		"pypi":        one("Authorization: Basic {basic:__token__}", []string{"upload.pypi.org"}, "TWINE_PASSWORD", "UV_PUBLISH_TOKEN"),
		"crates":      one("Authorization: {secret}", []string{"crates.io"}, "CARGO_REGISTRY_TOKEN"),
		"huggingface": one(bearer, []string{"huggingface.co"}, "HF_TOKEN"),
	}
})

func places(hosts ...string) (list []string) {
	for _, h := range hosts {
		if !strings.Contains(h, "/") {
			h += "/**"
		}
		list = append(list, "https://"+h)
	}
	return list
}

// WellKnown returns what a service's credential is for. What depends on the
// value (Anthropic has two kinds) is as for the most usual one, and Env has
// the variables of all.
func WellKnown(name string) (Credential, bool) {
	k, ok := services()[name]
	if !ok {
		return Credential{}, false
	}
	c := k.fit(name, "")
	for _, f := range k.forms {
		for _, v := range f.env {
			if !slices.Contains(c.Env, v) {
				c.Env = append(c.Env, v)
			}
		}
	}
	return c, true
}

// KnownNames lists the services that WellKnown knows.
func KnownNames() (names []string) {
	for n := range services() {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

func (k known) fit(name, value string) Credential {
	for _, f := range k.forms {
		if strings.HasPrefix(value, f.prefix) {
			return Credential{Name: name, Kind: Token, For: places(f.hosts...), As: f.as, Env: slices.Clone(f.env), Also: slices.Clone(k.also)}
		}
	}
	return Credential{Name: name, Kind: Token}
}

// readClaims returns the claims of a value, where programs read them in it.
func readClaims(name, value string) map[string]any {
	for _, f := range services()[name].forms {
		if f.claims {
			claims, _ := Claims(value)
			return claims
		}
	}
	return nil
}

// Complete fills in the missing settings of a credential of a well-known service. A
// credential with explicit destinations is not completed.
func Complete(c Credential, value Secret) Credential {
	k, ok := services()[c.Name]
	if !ok || c.Kind != Token {
		return c
	}
	fit := k.fit(c.Name, value.Reveal())
	if len(c.For) == 0 {
		c.For, c.Also = fit.For, fit.Also
		if c.As != "" {
			c.Also = nil
		}
	}
	if c.As == "" {
		c.As = fit.As
	}
	if len(c.Env) == 0 {
		c.Env = fit.Env
	}
	return c
}
