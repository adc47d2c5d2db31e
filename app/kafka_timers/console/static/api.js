// What the API does, as its own document tells it.

import { el } from "./page.js";

export async function api({ place, signal }) {
  const headers = sessionStorage.getItem("token") ? { Authorization: "Bearer " + sessionStorage.getItem("token") } : {};
  const document_ = await (await fetch("openapi.json", { headers, signal })).json();
  const schemas = document_.components?.schemas ?? {};
  const typeOf = (schema) => {
    if (!schema) return "";
    if (schema.$ref) return schema.$ref.split("/").pop();
    if (schema.anyOf) return schema.anyOf.map(typeOf).filter((each) => each !== "null").join(" or ");
    if (schema.type === "array") return `list of ${typeOf(schema.items)}`;
    return schema.type ?? "any";
  };
  const rows = (items) => el("ul", {}, items.map(([name, schema, isNeeded]) => el("li", {}, el("code", {}, name), `: ${typeOf(schema)}${isNeeded ? ", needed" : ""}${schema.description ? ` — ${schema.description}` : ""}`)));
  const operations = Object.entries(document_.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, operation]) => {
    const body = operation.requestBody?.content?.["application/json"]?.schema;
    const fields = body && schemas[typeOf(body)];
    const parameters = (operation.parameters ?? []).map((each) => [each.name, { ...each.schema, description: each.description ?? each.schema.description }, each.required]);
    return el("details", {},
      el("summary", {}, el("code", {}, `${method.toUpperCase()} ${path}`), " ", operation.summary),
      el("p", {}, operation.description ?? ""),
      ...(parameters.length ? [el("h3", {}, "Parameters"), rows(parameters)] : []),
      ...(fields ? [el("h3", {}, "Body"), rows(Object.entries(fields.properties).map(([name, schema]) => [name, schema, (fields.required ?? []).includes(name)]))] : []),
      el("h3", {}, "Answers"),
      el("ul", {}, Object.entries(operation.responses).map(([status, each]) => el("li", {}, `${status}: ${each.description}`))));
  }));
  place.append(el("h2", {}, "API"), el("p", {}, "Programs take ", el("a", { href: "openapi.json" }, "openapi.json"), "."), ...operations);
}
