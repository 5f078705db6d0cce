package console

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"example.com/cellmart/platform/cellkit/call"
	"example.com/cellmart/platform/cellkit/errs"
)

// signInView is the form to sign in.
type signInView struct {
	Next, Name string
	Wrong      bool
}

// next is where to go after signing in: a path of this origin.
func next(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(text, "/") || strings.HasPrefix(text, "//") || strings.ContainsAny(text, "\\\r\n") {
		return "/"
	}
	return text
}

func (s *server) handleSignInForm(w http.ResponseWriter, r *http.Request) {
	s.render(w, r, http.StatusOK, "signin", "", "title.signin", signInView{Next: next(r.URL.Query().Get("next"))})
}

func (s *server) handleSignIn(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, "", errs.Field("form", "can't be read"))
		return
	}
	s.collector.look() // so that the first page has figures that are new
	name := strings.TrimSpace(r.PostForm.Get("name"))
	to := next(r.PostForm.Get("next"))
	text, ends, err := s.sessions.signIn(r.Context(), name, r.PostForm.Get("password"))
	switch {
	case errors.Is(err, errWrong):
		who := name
		if errors.Is(err, errNobody) {
			who = "" // it may be a password that was typed there
		}
		s.log.Warn("sign-in refused", "operator", who, "from", r.RemoteAddr, "request", call.RequestID(r.Context()))
		s.render(w, r, http.StatusUnprocessableEntity, "signin", "", "title.signin", signInView{Next: to, Name: name, Wrong: true})
	case err != nil:
		s.fail(w, r, "", err)
	default:
		http.SetCookie(w, &http.Cookie{Name: sessionCookie, Value: text, Path: "/", Expires: ends, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
		http.Redirect(w, r, to, http.StatusSeeOther)
	}
}

func (s *server) handleSignOut(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: sessionCookie, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	if t := token(r); t != "" {
		if err := s.sessions.signOut(r.Context(), t); err != nil {
			s.fail(w, r, "", err)
			return
		}
	}
	http.Redirect(w, r, "/sign-in", http.StatusSeeOther)
}

// passwordView is the form to change a password: the text of what is wrong, or Done.
type passwordView struct {
	Wrong string
	Done  bool
}

func (s *server) handlePasswordForm(w http.ResponseWriter, r *http.Request, operator string) {
	s.render(w, r, http.StatusOK, "password", operator, "title.password", passwordView{})
}

func (s *server) handlePassword(w http.ResponseWriter, r *http.Request, operator string) {
	if err := r.ParseForm(); err != nil {
		s.fail(w, r, operator, errs.Field("form", "can't be read"))
		return
	}
	pass := r.PostForm.Get("new")
	wrong := ""
	if pass != r.PostForm.Get("again") {
		wrong = "password.differ"
	} else if err := s.sessions.change(r.Context(), operator, token(r), r.PostForm.Get("old"), pass); err != nil {
		switch {
		case errors.Is(err, errWrong):
			wrong = "password.wrong"
		case errors.Is(err, errShort):
			wrong = "password.short"
		default:
			s.fail(w, r, operator, err)
			return
		}
	}
	status := http.StatusOK
	if wrong != "" {
		status = http.StatusUnprocessableEntity
	}
	s.render(w, r, status, "password", operator, "title.password", passwordView{Wrong: wrong, Done: wrong == ""})
}
