package storefront

import (
	"cmp"
	"net/http"
	"net/url"
	"path"

	"example.com/cellmart/platform/cellkit/errs"
)

// entrance is what login and registration show.
type entrance struct {
	Next string
	Over bool // the session has run out
}

func (v *visit) next() string {
	if v.r.Method == http.MethodPost {
		return local(v.form("next"))
	}
	return local(v.r.URL.Query().Get("next"))
}

func (v *visit) loginForm() error {
	p, _ := v.loginPage()
	return v.show(p)
}

func (v *visit) loginPage() (*page, error) {
	p := v.page("login", "login.title", entrance{Next: v.next(), Over: v.r.URL.Query().Get("over") != ""})
	p.at = "/login?" + url.Values{"next": {v.next()}}.Encode()
	return p, nil
}

func (v *visit) login() error {
	var s session
	_, err := v.do(ask{method: http.MethodPost, path: "/sessions", in: map[string]string{
		"phone": v.form("phone"), "password": v.r.PostForm.Get("password"),
	}}, &s)
	if code(err) == "INVALID_CREDENTIALS" { // not a session that is over
		p, _ := v.loginPage()
		p.Trouble = v.trouble(err)
		return v.write(http.StatusUnprocessableEntity, p)
	}
	if err != nil {
		return v.refused(err, "", v.loginPage)
	}
	v.logIn(s)
	return v.see(v.next())
}

// logout ends this browser's login, or all logins of the user. What can't be told to
// the home now ends here all the same, with the browser's cookies: the session's token
// is good for up to 10 minutes, the refresh token, which nobody has any more, for as
// long as any. Only "everywhere" must be told.
func (v *visit) logout() error {
	if v.form("everywhere") != "" {
		if v.token == "" {
			return cmp.Or(v.lapsed, errNoSession)
		}
		if _, err := v.do(ask{method: http.MethodDelete, path: "/sessions", own: true}, nil); err != nil {
			return v.refused(err, "", v.accountPage)
		}
	} else if token := cookieValue(v.r, cookieRefresh); token != "" {
		in := map[string]string{"refresh_token": token}
		if _, err := v.do(ask{method: http.MethodPost, path: "/sessions/end", in: in}, nil); err != nil {
			v.noted(err)
		}
	}
	setCookie(v.w, cookieRefresh, "", 0)
	setCookie(v.w, cookieSession, "", 0)
	setCookie(v.w, cookieCart, "", 0)
	v.w.Header().Set("Cache-Control", "no-store")
	v.w.Header().Set("Clear-Site-Data", `"cache"`)
	return v.see("/")
}

func (v *visit) registerForm() error {
	p, _ := v.registerPage()
	p.Key = newKey()
	return v.show(p)
}

func (v *visit) registerPage() (*page, error) {
	p := v.page("register", "register.title", entrance{Next: v.next()})
	p.at = "/register?" + url.Values{"next": {v.next()}}.Encode()
	return p, nil
}

func (v *visit) register() error {
	key, err := v.key()
	if err != nil {
		return err
	}
	in := map[string]string{"phone": v.form("phone"), "name": v.form("name"), "password": v.r.PostForm.Get("password")}
	if group := v.form("group"); group != "" {
		in["group"] = group
	}
	var s session
	var head reply
	err = v.patiently(func() (err error) {
		head, err = v.do(ask{method: http.MethodPost, path: "/users", key: key, in: in}, &s)
		return err
	})
	switch {
	case err != nil:
		return v.refused(err, key, v.registerPage)
	case head.status == http.StatusAccepted:
		return v.see("/register/" + segment(path.Base(head.header.Get("Location"))) + "?" + url.Values{"next": {v.next()}}.Encode())
	}
	v.logIn(s)
	return v.see(v.next())
}

// registration shows how one stands that the phone's home hasn't answered yet.
func (v *visit) registration() error {
	var o operation
	if err := v.look("/operations/"+segment(v.r.PathValue("id")), nil, &o); err != nil {
		return err
	}
	p := v.page("registration", "registration.title", struct {
		operation
		Next string
	}{o, v.next()})
	p.Wait = o.State == "PENDING"
	return v.show(p)
}

// profile is the account's page.
type profile struct {
	User          user
	Addresses     []address
	AddressesAway bool
}

func (v *visit) account() error {
	p, err := v.accountPage()
	if err != nil {
		return err
	}
	return v.show(p)
}

func (v *visit) accountPage() (*page, error) {
	var a profile
	var l list[address]
	failed := together(
		func() error { return v.get("/me", nil, &a.User) },
		func() error { return v.get("/me/addresses", nil, &l) },
	)
	if failed[0] != nil {
		return nil, failed[0]
	}
	a.Addresses, a.AddressesAway = l.Items, failed[1] != nil
	p := v.page("account", "account.title", a)
	p.at = "/account"
	return p, nil
}

func (v *visit) rename() error {
	_, err := v.do(ask{method: http.MethodPatch, path: "/me", in: map[string]string{"name": v.form("name")}, own: true}, nil)
	if err != nil {
		return v.refused(err, "", v.accountPage)
	}
	return v.see("/account")
}

func (v *visit) addAddress() error {
	in := map[string]string{}
	for _, name := range []string{"recipient", "phone", "line", "city", "postcode"} {
		in[name] = v.form(name)
	}
	if _, err := v.do(ask{method: http.MethodPost, path: "/me/addresses", in: in, own: true}, nil); err != nil {
		return v.refused(err, "", v.accountPage)
	}
	if v.form("next") == "/checkout" {
		return v.see("/checkout")
	}
	return v.see("/account")
}

// dropAddress is done, too, when the address is gone already.
func (v *visit) dropAddress() error {
	_, err := v.do(ask{method: http.MethodDelete, path: "/me/addresses/" + segment(v.r.PathValue("id")), own: true}, nil)
	if err != nil && !errs.IsKind(err, errs.NotFound) {
		return v.refused(err, "", v.accountPage)
	}
	return v.see("/account")
}
