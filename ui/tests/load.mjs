/** A module of the page, loaded as Vite would serve it. */

import { after } from "node:test";
import { createServer } from "vite";

const vite = await createServer({
  configFile: false,
  root: new URL("..", import.meta.url).pathname,
  server: { middlewareMode: true, hmr: false, ws: false, watch: null },
  optimizeDeps: { noDiscovery: true },
  appType: "custom",
  logLevel: "error",
});
after(() => vite.close());

export const load = (path) => vite.ssrLoadModule(`/src/${path}`);
