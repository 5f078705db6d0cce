package apitest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/cellmart/platform/cellkit/call"
)

func TestDocumentIsValid(t *testing.T) {
	t.Parallel()
	v, err := document()
	if err != nil {
		t.Fatal(err)
	}
	if ok, problems := v.ValidateDocument(); !ok {
		t.Error(explain("the document", problems))
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	const (
		problem = `{"type":"about:blank","title":"Not Found","status":404,"code":"NOT_FOUND","detail":"there is no such thing"}`
		user    = `{"id":"16389","name":"Ann","phone":"+8613800000001","seller":false,"created_at":"2026-05-04T03:02:01Z"}`
		js      = "application/json"
	)
	for _, tc := range []struct {
		name, method, path, body string
		status                   int
		contentType, answer      string
		want                     string // "" = valid
	}{
		{"a user", "GET", "/api/v1/me", "", 200, js, user, ""},
		{"an accepted body", "PATCH", "/api/v1/me", `{"name":"Bo"}`, 200, js, user, ""},
		{"an accepted body that the document doesn't have", "PATCH", "/api/v1/me", `{"nick":"Bo"}`, 200, js, user, "nick"},
		{"nothing", "DELETE", "/api/v1/cart/items/16389", "", 204, "", "", ""},
		{"a number for an ID", "GET", "/api/v1/me", "", 200, js, strings.Replace(user, `"16389"`, `16389`, 1), "id"},
		{"a field missing", "GET", "/api/v1/me", "", 200, js, strings.Replace(user, `"name":"Ann",`, ``, 1), "name"},
		{"a field too many", "GET", "/api/v1/me", "", 200, js, strings.Replace(user, `{`, `{"password":"x",`, 1), "password"},
		{"not a time", "GET", "/api/v1/me", "", 200, js, strings.Replace(user, `2026-05`, `2026-5`, 1), "created_at"},
		{"null for a list", "GET", "/api/v1/wallet", "", 200, js, `{"balances":null}`, "balances"},
		{"a problem", "GET", "/api/v1/transfers/1", "", 404, call.ProblemType, problem, ""},
		{"a problem under default", "GET", "/api/v1/me", "", 500, call.ProblemType, strings.Replace(problem, "404", "500", 1), ""},
		{"a problem without a code", "GET", "/api/v1/transfers/1", "", 404, call.ProblemType, strings.Replace(problem, `"code":"NOT_FOUND",`, ``, 1), "code"},
		{"an error that is no problem", "GET", "/api/v1/transfers/1", "", 404, js, problem, "application/json"},
		{"a path of nobody", "GET", "/api/v1/nowhere", "", 404, call.ProblemType, problem, ""},
		{"a path that the document lacks", "GET", "/api/v1/nowhere", "", 200, js, `{}`, "nowhere"},
		{"another answer than 201", "POST", "/api/v1/seller", `{"shop_name":"x"}`, 299, js, user, "299"},
		{"outside of the API", "GET", "/", "", 200, "text/html", "<p>", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequest(tc.method, tc.path, nil)
			if tc.body != "" {
				var err error
				if r, err = http.NewRequest(tc.method, "http://127.0.0.1"+tc.path, strings.NewReader(tc.body)); err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Content-Type", js)
			}
			res := &http.Response{StatusCode: tc.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(tc.answer))}
			if tc.contentType != "" {
				res.Header.Set("Content-Type", tc.contentType)
			}
			err := Validate(r, res)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Validate = %v, want a word about %q", err, tc.want)
			}
			if b, err := io.ReadAll(res.Body); err != nil || string(b) != tc.answer {
				t.Errorf("the answer reads %q afterwards (%v)", b, err)
			}
		})
	}
}
