package edge

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"example.com/cellmart/platform/cellkit/obs"
	"example.com/cellmart/platform/cellkit/relay"
	"example.com/cellmart/platform/cellkit/web"
)

// headerRegion asks for a region, or for a cell by its name.
const headerRegion = "X-Region"

// newHandler passes everything on, GET / too: the gateways have the page.
func newHandler(p *proxy, log *slog.Logger, m *obs.Metrics) http.Handler {
	e := web.New(web.Options{Service: "edge", Log: log, Timeout: answerLimit + 2*time.Second, Metrics: m})
	e.Any("/*", func(c echo.Context) error {
		r := c.Request()
		region, cookie := r.Header.Get(headerRegion), ""
		if ck, err := r.Cookie("cell"); err == nil {
			cookie = ck.Value
		}
		q, err := relay.Read(r)
		if err != nil {
			return err
		}
		return p.serve(r.Context(), c.Response(), q, region, cookie)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/livez" && r.Method == http.MethodGet {
			fmt.Fprintln(w, "ok")
			return
		}
		e.ServeHTTP(w, r)
	})
}
