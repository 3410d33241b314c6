package credential

import (
	"encoding/base64"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// jwtOf is a token with a payload.
func jwtOf(payload string) string {
	e := base64.RawURLEncoding.EncodeToString
	return e([]byte(`{"alg":"RS256","kid":"b1dd3f8f-0cc7-4a51-9d1e-1fbb2f3b5a1c","typ":"JWT"}`)) + "." + e([]byte(payload)) + "." + e([]byte(strings.Repeat("signature", 28)))
}

const claims = `{"aud":["https://api.openai.com/v1"],"client_id":"app_1","exp":1764300000,"https://api.openai.com/auth":{"chatgpt_account_id":"0b7d8c4e-6a51-4f3e-9d20-3c1a5e7f9b24","chatgpt_plan_type":"plus","chatgpt_user_id":"user-0123456789"},` +
	`"https://api.openai.com/profile":{"email":"user@example.com","email_verified":true},"name":"A \"name\" ü 😀 \\ \u0001","scp":["openid","profile","email","offline_access"]}`

// A program reads the value's claims in a placeholder, and one that expires late; the value's text is not
// in it, whatever the claims' order and place are.
func TestPlaceholderWithClaims(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := jwtOf(rapid.StringN(0, 4, -1).Filter(func(s string) bool { return strings.Trim(s, " \t\n") == "" }).Draw(t, "before") + claims)
		c, _ := WellKnown("chatgpt")
		c.Shape, c.Claims = ShapeOf(NewSecret(value)), c.readClaims(value)
		p := c.Placeholder()
		got, err := Claims(p)
		if err != nil {
			t.Fatal(err)
		}
		want := c.readClaims(value)
		want["exp"] = float64(4102444800)
		if !reflect.DeepEqual(got, want) {
			t.Errorf("its claims are %v, not %v", got, want)
		}
		if p == c.Placeholder() || checkValue(p) != nil || !strings.Contains(p, placeholderMark) {
			t.Errorf("%s is no placeholder", p)
		}
		for i := 0; i+32 <= len(value); i++ {
			if strings.Contains(p, value[i:i+32]) {
				t.Fatalf("%s of the value is in %s", value[i:i+32], p)
			}
		}
	})
	subscription, _ := WellKnown("chatgpt")
	key, _ := WellKnown("openai")
	other := Credential{Name: "chatgpt", Kind: Token, Env: []string{"MINE"}}
	if key.readClaims(jwtOf(claims)) != nil || subscription.readClaims("sk-proj-0123456789") != nil || other.readClaims(jwtOf(claims)) != nil {
		t.Error("a key, or a credential of the user's own, has claims")
	}
}
