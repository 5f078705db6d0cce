package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"example.com/cellmart/platform/cellkit"
)

const checkLimit = 3 * time.Second

// runCheck is what an engine calls inside a container that has no shell: 0 when
// every address answers 200.
func runCheck(ctx context.Context, p cellkit.Process) error {
	if len(p.Args) == 0 {
		return cellkit.Usage{Err: errors.New("check wants URL..., for example: check http://127.0.0.1:9100/readyz")}
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	for _, url := range p.Args {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return cellkit.Usage{Err: err}
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		res.Body.Close() //nolint:errcheck // only its status counts
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s says %s", url, res.Status)
		}
	}
	return nil
}
